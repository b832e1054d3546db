"""Sends the lines of all batches beside other traffic, in fair turns between API keys. If a worker is lost, only its
lines in flight are lost: another worker continues after the last whole line of each batch's results, so that each
custom_id gets exactly one result.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import datetime
from typing import Any, Protocol

import structlog
from django.db import DatabaseError
from django.utils import timezone

from controlplane.traffic.batches import line_queue, lines, services, turns
from controlplane.traffic.batches.lines import LineAnswer, usage_of
from controlplane.traffic.batches.models import Batch
from controlplane.traffic.batches.placed import PlacedBatch, place
from controlplane.traffic.batches.turns import EngineReports, Placed, Queued, Ticket, Turns
from fleet import jobs
from fleet.jobs import JobFailed, Stopped

log = structlog.get_logger(__name__)
LOOK_S = 0.5  # interval between checks of the database, the routers and the engines
TRIES = 4  # attempts for a line that receives server errors or no answer
NO_ANSWER = LineAnswer(502, "", b"{}")


class FileExecutor(Protocol):
    """The executor used to open and create files."""

    def submit(self, work: Callable[..., Any], /, *given: Any) -> "Future[Any]": ...

    def shutdown(self, *, cancel_futures: bool) -> None: ...


class Sends(Protocol):
    urls: list[str]

    def send(self, key_id: int, api_path: str, body: bytes, request_id: str) -> "Future[LineAnswer]": ...


class Dispatcher:
    """Sends the lines of placed batches; `files` runs work that reads whole files."""

    def __init__(
        self,
        sender: Sends,
        files: FileExecutor,
        urls: Callable[[], list[str]],
        loads: Callable[[], EngineReports],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sender, self._files, self._urls, self._loads, self._clock = sender, files, urls, loads, clock
        self._turns = Turns()
        self._placed: dict[int, PlacedBatch] = {}
        self._under_way: dict[Future[LineAnswer], tuple[PlacedBatch, Ticket]] = {}
        self._looked = float("-inf")

    def run(self) -> None:
        """Run until no batch has a place or is due."""
        while self.step():
            futures: list[Future[Any]] = [batch.opening for batch in self._placed.values() if not batch.is_open]
            futures += self._under_way
            if futures:
                wait(futures, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            else:
                time.sleep(LOOK_S)

    def step(self) -> bool:
        """Perform one step. Return False if no batch has a place or is due."""
        now = self._clock()
        self._take_answers(now)
        if now - self._looked >= LOOK_S:
            self._looked = now
            with _database_may_be_away():
                self._look(now)
        for batch in list(self._placed.values()):
            with self._failing_alone(batch):
                self._move_on(batch, now)
        self._fill(now)
        return bool(self._placed) or services.due(timezone.now()).exists()

    def release(self) -> None:
        """Leave the remaining batches to another worker."""
        self._take_answers(self._clock())
        self._files.shutdown(cancel_futures=True)
        for batch in list(self._placed.values()):
            with _database_may_be_away():
                batch.give_up(timezone.now())
            self._let_go(batch)

    def _take_answers(self, now: float) -> None:
        for future in [future for future in self._under_way if future.done()]:
            if future in self._under_way:  # The batch may have been dropped with an earlier answer.
                batch, ticket = self._under_way.pop(future)
                with self._failing_alone(batch):
                    self._settle(batch, ticket, _answer_of(future), now)

    def _fill(self, now: float) -> None:
        while self._sender.urls and (ticket := self._turns.next(now)):
            batch = next(batch for batch in self._placed.values() if batch.queue is ticket.queue)
            with self._failing_alone(batch):
                try:
                    body = batch.body_of(ticket.line)
                except BaseException:
                    self._turns.settle(ticket, None)
                    raise
                name = f"{batch.job.name}-{ticket.number}"
                future = self._sender.send(batch.job.key_id, batch.job.api_path, body, name)
                self._under_way[future] = batch, ticket

    def _settle(self, batch: PlacedBatch, ticket: Ticket, answer: LineAnswer, now: float) -> None:
        """Write the line's outcome, or put the line back into the queue."""
        meaning, flow = lines.meaning(answer, batch.job.api_path), ticket.flow
        tokens: tuple[int, int] | None = usage_of(meaning.document)
        if meaning.reason is not None:
            tokens = None
            flow.remaining.append((ticket.number, ticket.line))
            flow.refuse(meaning.reason, answer.retry_after_s or 0.0, ticket.sent_at, now)
        else:
            flow.go_on(ticket.sent_at)
        if meaning.outcome == "again":
            batch.failures[ticket.number] += 1
        tried = batch.failures[ticket.number] if meaning.outcome == "again" else TRIES
        if tried < TRIES:
            line_queue.delay(flow, ticket.number, ticket.line, now + line_queue.PAUSE_S * 2 ** (tried - 1))
        self._turns.settle(ticket, tokens)
        if meaning.reason is None and tried >= TRIES:
            batch.write(ticket, answer.status, answer.request_id, meaning.document, meaning.error)

    def _look(self, now: float) -> None:
        """Pick up changes made by other processes, store progress, and give places to batches that are due."""
        self._sender.urls = self._urls()
        self._turns.pace(self._loads())
        wall = timezone.now()
        running = Batch.objects.filter(pk__in=self._placed, status=jobs.RUNNING)
        starts = dict(running.values_list("pk", "started_at"))
        for batch in list(self._placed.values()):
            batch.charge(now)
            # A batch that is still being opened is dropped later, because a thread is reading and repairing its files.
            suppressed = () if batch.is_open else (Stopped,)
            with self._failing_alone(batch), contextlib.suppress(*suppressed):
                if starts.get(batch.job.pk) != batch.job.started_at:
                    raise Stopped
                batch.beat(now, wall, batch.waits(now, wall, bool(self._sender.urls)))
        self._give_places(now, wall)

    def _give_places(self, now: float, wall: datetime) -> None:
        queued = [Queued(pk, key) for pk, key in services.first_due(wall, turns.PLACES_OF_KEY)]
        claimed = turns.claims(self._places(now), queued)
        for pk in claimed:
            placed = place(pk, self._files.submit, now, wall)
            if placed is not None:
                self._placed[pk] = placed
        leaver = turns.leaver(self._places(now), [batch for batch in queued if batch.pk not in claimed])
        if leaver is not None:
            self._placed[leaver].queue.leaves = True

    def _places(self, now: float) -> list[Placed]:
        return [
            Placed(
                pk,
                batch.job.key_id,
                now - batch.since,
                waits=batch.queue.waiting() is not None,
                leaves=batch.queue.leaves,
            )
            for pk, batch in self._placed.items()
        ]

    def _move_on(self, batch: PlacedBatch, now: float) -> None:
        """Move the batch to its next state if that is due."""
        if not batch.is_open:
            if batch.opening.done():
                batch.begin()
                self._turns.add(batch.queue)
        elif batch.queue.has_ended:
            batch.end(is_expired=False)
            self._drop(batch)
        elif batch.has_expired(wall := timezone.now()):
            batch.end(is_expired=True)
            self._drop(batch)
        elif batch.queue.leaves and not batch.queue.under_way:
            waits = batch.waits(now, wall, has_routers=True)
            batch.give_up(waits[1] if waits else wall)
            self._drop(batch)

    @contextlib.contextmanager
    def _failing_alone(self, batch: PlacedBatch) -> Iterator[None]:
        """Make a fault in one batch end only that batch; while the database is unreachable, no batch ends."""
        try:
            yield
        except DatabaseError as error:
            log.warning("batch.not_written", batch=batch.job.name, error=str(error)[:200])
        except Stopped:
            self._drop(batch)
        except Exception as error:
            with _database_may_be_away():
                values = error.values if isinstance(error, JobFailed) else {}
                jobs.end(batch.job, jobs.FAILED, jobs.cause_of(error, (OSError, JobFailed)), **values)
            self._drop(batch)

    def _drop(self, batch: PlacedBatch) -> None:
        """Drop the batch, and create its files if it has ended."""
        self._let_go(batch)
        self._files.submit(_close, batch.job.pk)

    def _let_go(self, batch: PlacedBatch) -> None:
        """Free the batch's place; its lines in flight end without an answer."""
        for future in [future for future, (owner, _) in self._under_way.items() if owner is batch]:
            future.cancel()
            self._turns.settle(self._under_way.pop(future)[1], None)
        self._turns.remove(batch.queue)
        del self._placed[batch.job.pk]
        batch.close()


def _close(pk: int) -> None:
    for row in Batch.objects.filter(pk=pk):
        services.close(row)


def _answer_of(future: "Future[LineAnswer]") -> LineAnswer:
    try:
        return future.result()
    except Exception as error:
        log.warning("batch.line_not_sent", error=f"{type(error).__name__}: {error}"[:200])
        return NO_ANSWER


@contextlib.contextmanager
def _database_may_be_away() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        log.warning("batches.database_away", error=str(error)[:200])
