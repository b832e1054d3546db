"""Runs a batch: checks its lines, sends them beside other traffic, and closes its files.

A dead worker loses only the requests under way: another one goes on after the last whole line of the
results, so that each custom_id gets exactly one.
"""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from typing import Any

import redis
from django.utils import timezone

from controlplane.batches import lines as batch_lines
from controlplane.batches import pace, services, store
from controlplane.batches.lines import Line
from controlplane.batches.models import Batch
from controlplane.batches.sending import Answer, Sender
from fleet import jobs
from fleet.jobs import Heartbeat, JobFailed
from fleet.models import Instance
from fleet.redis import live_routers, values_of
from router.contract.redis import redis_keys
from router.contract.redis.router_status import RouterStatus
from router.contract.redis.sample import InstanceSample

FLUSH_S = 1.0


def run_batch(batch_id: int) -> None:
    name = Batch.objects.values_list("name", flat=True).filter(pk=batch_id).first()
    if name is None:
        return
    with store.alone(name) as mine:
        if mine:
            jobs.perform(Batch, batch_id, _work, (OSError,))
    services.close(Batch.objects.get(pk=batch_id))


def _work(job: Batch) -> dict[str, Any]:
    """Raises JobFailed for lines that are not valid, Stopped when it was cancelled."""
    todo = _checked(job)
    if job.in_progress_at is None:
        now = timezone.now()
        jobs.of_this_start(job).update(in_progress_at=now, total=len(todo))
    return _Run(job, todo).run()


def _checked(job: Batch) -> list[Line]:
    path = store.content(job.input_file)
    if not path.exists():
        raise JobFailed("its input file was deleted")
    with path.open("rb") as raw:
        found = batch_lines.check(raw, job.api_path)
    if found.faults:
        first = found.faults[0]
        raise JobFailed(f"line {first.line}: {first.message}", faults=[fault.document() for fault in found.faults])
    return found.lines


class _Run:
    def __init__(self, job: Batch, lines: list[Line]) -> None:
        self._job = job
        self._lines = lines
        self._heart = Heartbeat(job)
        self._results = store.Results(job.name)
        self._sender = Sender(job.key_id, job.api_path, router_urls())
        self._under_way: dict[Future[Answer], tuple[int, Line]] = {}

    def run(self) -> dict[str, Any]:
        todo = iter([(n, line) for n, line in enumerate(self._lines, 1) if line.custom_id not in self._results.written])
        ends = self._job.created_at + timedelta(seconds=self._job.window_s)
        try:
            expired = self._send_all(todo, ends.timestamp())
        finally:
            self._sender.close()
            self._results.flush()
            self._results.close()
        return {"is_expired": expired, **self._progress()}

    def _send_all(self, todo: Iterator[tuple[int, Line]], ends: float) -> bool:
        """Returns True if its window ended before all lines had an answer."""
        most, paced, flushed, following = pace.FIRST, 0.0, time.monotonic(), next(todo, None)
        with store.content(self._job.input_file).open("rb") as file:
            while following is not None or self._under_way:
                if time.time() >= ends:
                    return True
                if time.monotonic() - paced >= pace.STEP_S:
                    most, paced = pace.allowed(most, samples()), time.monotonic()
                    self._sender.urls = router_urls()
                while following is not None and len(self._under_way) < most:
                    number, line = following
                    file.seek(line.start)
                    body = batch_lines.body_of(file.read(line.size))
                    self._under_way[self._sender.send(body, f"{self._job.name}-{number}")] = following
                    following = next(todo, None)
                done, _ = wait(self._under_way, timeout=pace.STEP_S, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(*self._under_way.pop(future), future.result())
                if time.monotonic() - flushed >= FLUSH_S:
                    self._results.flush()
                    flushed = time.monotonic()
                self._heart.beat(**self._progress())
        return False

    def _take(self, number: int, line: Line, answer: Answer) -> None:
        name, results, document = self._job.name, self._results, batch_lines.document_of(answer.body)
        written = batch_lines.answered(name, number, line.custom_id, answer.status, answer.request_id, document)
        results.add(results.output if answer.status == 200 else results.errors, line.custom_id, written, document)

    def _progress(self) -> dict[str, int]:
        results = self._results
        input_tokens, output_tokens = results.tokens
        return {
            "completed": results.counts[results.output],
            "failed": results.counts[results.errors],
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }


def samples() -> list[InstanceSample]:
    try:
        names = list(Instance.objects.values_list("name", flat=True))
        return list(values_of(InstanceSample, redis_keys.instance_key, names).values())
    except redis.RedisError:
        return []


def router_urls() -> list[str]:
    try:
        statuses = values_of(RouterStatus, redis_keys.router_key, live_routers())
    except redis.RedisError:
        return []
    return [status.url for status in statuses.values() if status.url]
