"""A batch with a place: its row, its unanswered lines, its results, and the clock of its window."""

from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.traffic.batches import lines as batch_lines
from controlplane.traffic.batches import store
from controlplane.traffic.batches.line_queue import LineQueue
from controlplane.traffic.batches.lines import NO_ROUTER, Line, Reason
from controlplane.traffic.batches.models import Batch
from controlplane.traffic.batches.turns import Ticket
from fleet import jobs
from fleet.jobs import JobFailed

BEAT_S, ALIVE_S = 0.5, jobs.ALIVE_S  # intervals between writes of its row: after a change, and without one
FLUSH_S = 5.0  # interval between flushes of its results to disk
BUSY_S = 5.0  # delay before retrying a batch whose results are locked by another process
Opened = tuple[list[Line], store.BatchResults]


class PlacedBatch:
    def __init__(self, job: Batch, lock: ExitStack, opening: "Future[Opened]", now: float) -> None:
        self.job, self.since = job, now
        self.opening, self.is_open = opening, False
        self.queue = LineQueue(job.key_id, ())
        self.failures: Counter[int] = Counter()  # failed tries by line number
        self._lock = lock
        self._charged = self._written = self._flushed = now
        self._row: dict[str, Any] = {}

    @property
    def results(self) -> store.BatchResults:
        """Return the results of a batch whose files are open."""
        return self.opening.result()[1]

    def begin(self) -> None:
        """Take over the opened files. Raise JobFailed for invalid lines."""
        lines, results = self.opening.result()
        if self.job.in_progress_at is None:
            self._update(in_progress_at=timezone.now(), total=len(lines))
        self.queue = LineQueue(self.job.key_id, lines, results.written)
        self.is_open = True  # set last, because this is repeated while the database is unreachable

    def body_of(self, line: Line) -> bytes:
        with store.content(self.job.input_file).open("rb") as file:
            file.seek(line.start)
            return batch_lines.body_of(file.read(line.size))

    def write(self, ticket: Ticket, status: int, request_id: str, document: object, error: object) -> None:
        """Write the outcome of a line."""
        results, line_id = self.results, (self.job.name, ticket.number, ticket.line.custom_id)
        line = batch_lines.answered(line_id, status, request_id, document, error)
        path = results.output if status == 200 and error is None else results.errors
        results.add(path, line, document)
        self.failures.pop(ticket.number, None)

    def charge(self, now: float) -> None:
        """Count the time since the last call towards the window, unless it was the turn of other batches."""
        if not self.is_open or self.queue.is_held_up(now):
            self.job.waited_s += now - self._charged
        self._charged = now

    def has_expired(self, wall: datetime) -> bool:
        ends = self.job.created_at + timedelta(seconds=self.job.window_s + self.job.waited_s)
        return wall >= ends

    def waits(self, now: float, wall: datetime, has_routers: bool) -> tuple[Reason, datetime] | None:
        """Return (why the batch cannot send, when to ask again); None while it can."""
        flow = self.queue.waiting()
        if flow is not None and flow.reason is not None:
            return flow.reason, wall + timedelta(seconds=max(0.0, flow.paused_until - now))
        return (NO_ROUTER, wall) if not has_routers and self.queue.flows else None

    def progress(self) -> dict[str, int]:
        results = self.results
        return {
            "completed": results.counts[results.output],
            "failed": results.counts[results.errors],
            "input_tokens": results.tokens[0],
            "output_tokens": results.tokens[1],
        }

    def beat(self, now: float, wall: datetime, waits: tuple[Reason, datetime] | None) -> None:
        """Write the batch's progress and, less often, flush its results to disk. Raise Stopped."""
        self.job.waits_code, self.job.waits_for = (waits[0].code, waits[0].message) if waits else ("", "")
        row: dict[str, Any] = {"waits_code": self.job.waits_code, "waits_for": self.job.waits_for}
        if self.is_open:
            row |= self.progress()
        if self.is_open and now - self._flushed >= FLUSH_S:
            self._flushed = now
            self.results.flush()
        since_s = now - self._written
        if since_s >= (BEAT_S if row != self._row else ALIVE_S):
            self._row, self._written = row, now
            self.job.due_at = waits[1] if waits else None
            clock = {"waited_s": self.job.waited_s, "due_at": self.job.due_at, "heartbeat_at": timezone.now()}
            self._update(**row, **clock)

    def _update(self, **values: Any) -> None:
        if not jobs.of_this_start(self.job).filter(status=jobs.RUNNING).update(**values):
            raise jobs.Stopped

    def end(self, *, is_expired: bool) -> None:
        self.results.flush()
        values: dict[str, Any] = {"is_expired": is_expired, "waits_for": "", "waits_code": "", "due_at": None}
        jobs.end(self.job, jobs.DONE, waited_s=self.job.waited_s, **{**values, **self.progress()})

    def give_up(self, due_at: datetime) -> None:
        """Queue the batch again: other batches get its place until it needs one at `due_at`."""
        if self.is_open:
            self.results.flush()
        put_back(self.job, due_at)

    def close(self) -> None:
        """Free the batch's place. Call this only when no thread is opening the batch's files."""
        if not self.opening.cancelled() and self.opening.exception() is None:
            with suppress(OSError):  # on a full disk, missing lines are written when the files are created
                self.results.close()
        self._lock.close()


def place(pk: int, open_files: Any, now: float, wall: datetime) -> PlacedBatch | None:
    """Claim the batch; None if another process has it. `open_files` schedules the opening of its files."""
    job = jobs.claim(Batch, pk)
    if job is None:
        return None
    lock = ExitStack()
    if not lock.enter_context(store.alone(job.name)):
        put_back(job, wall + timedelta(seconds=BUSY_S))
        return None
    if job.due_at is not None:
        job.waited_s += max(0.0, (wall - job.due_at).total_seconds())
    jobs.of_this_start(job).update(waited_s=job.waited_s, due_at=None)
    return PlacedBatch(job, lock, open_files(opened, job), now)


def put_back(job: Batch, due_at: datetime) -> None:
    jobs.requeue(job, "", due_at=due_at, waits_for=job.waits_for, waits_code=job.waits_code, waited_s=job.waited_s)


def opened(job: Batch) -> Opened:
    """Open the batch's files. Raise JobFailed for invalid lines."""
    path = store.content(job.input_file)
    if not path.exists():
        raise JobFailed("its input file was deleted")
    with path.open("rb") as raw:
        checked = batch_lines.check(raw, job.api_path, has_begun=job.in_progress_at is not None)
    if checked.faults:
        first = checked.faults[0]
        raise JobFailed(f"line {first.line}: {first.message}", faults=[fault.document() for fault in checked.faults])
    results = store.BatchResults(job.name)
    for number, line in enumerate(checked.lines, 1):
        if line.fault and line.custom_id not in results.written:
            error = batch_lines.without_answer(job.name, number, line.custom_id, "invalid_request", line.fault)
            results.add(results.errors, error)
            results.written.add(line.custom_id)
    return checked.lines, results
