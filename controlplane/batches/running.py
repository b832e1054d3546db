"""Runs a batch: checks its lines, sends them beside other traffic, and closes its files.

A dead worker loses only the requests under way: another one goes on after the last whole line of the
results, so that each custom_id gets exactly one.
"""

import time
from collections import defaultdict, deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import timedelta
from typing import IO, Any

import redis
from django.utils import timezone

from controlplane.batches import lines as batch_lines
from controlplane.batches import pace, services, store
from controlplane.batches.lines import Line
from controlplane.batches.models import Batch
from controlplane.batches.pace import Load
from controlplane.batches.sending import LineAnswer, Sender
from fleet import jobs
from fleet.jobs import Heartbeat, JobFailed
from fleet.models import Instance, Pool
from fleet.redis import live_routers, value_of, values_of
from router.contract import models
from router.contract.redis import redis_keys
from router.contract.redis.published import ModelsValue
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


@dataclass(slots=True)
class _Lane:
    """The lines for one model."""

    left: deque[tuple[int, Line]] = field(default_factory=deque)
    under_way: int = 0
    most: int = pace.FIRST  # under way


class _Run:
    def __init__(self, job: Batch, lines: list[Line]) -> None:
        self._job = job
        self._lanes: defaultdict[str, _Lane] = defaultdict(_Lane)
        self._heart = Heartbeat(job)
        self._results = store.Results(job.name)
        self._sender = Sender(job.key_id, job.api_path, router_urls())
        self._under_way: dict[Future[LineAnswer], tuple[int, Line]] = {}
        for number, line in enumerate(lines, 1):
            if line.custom_id not in self._results.written:
                self._lanes[line.model].left.append((number, line))

    def run(self) -> dict[str, Any]:
        ends = self._job.created_at + timedelta(seconds=self._job.window_s)
        try:
            expired = self._send_all(ends.timestamp())
        finally:
            self._sender.close()
            self._results.flush()
            self._results.close()
        return {"is_expired": expired, **self._progress()}

    def _send_all(self, ends: float) -> bool:
        """Returns True if its window ended before all lines had an answer."""
        paced, flushed = 0.0, time.monotonic()
        with store.content(self._job.input_file).open("rb") as file:
            while self._under_way or any(lane.left for lane in self._lanes.values()):
                if time.time() >= ends:
                    return True
                if time.monotonic() - paced >= pace.STEP_S:
                    load, paced = loads(), time.monotonic()
                    for model, lane in self._lanes.items():
                        lane.most = pace.allowed(lane.most, load.of(model))
                    self._sender.urls = router_urls()
                for lane in self._lanes.values():
                    self._send(lane, file)
                done, _ = wait(self._under_way, timeout=pace.STEP_S, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(*self._under_way.pop(future), future.result())
                if time.monotonic() - flushed >= FLUSH_S:
                    self._results.flush()
                    flushed = time.monotonic()
                self._heart.beat(**self._progress())
        return False

    def _send(self, lane: _Lane, file: IO[bytes]) -> None:
        while lane.left and lane.under_way < lane.most:
            number, line = lane.left.popleft()
            file.seek(line.start)
            body = batch_lines.body_of(file.read(line.size))
            self._under_way[self._sender.send(body, f"{self._job.name}-{number}")] = (number, line)
            lane.under_way += 1

    def _take(self, number: int, line: Line, answer: LineAnswer) -> None:
        self._lanes[line.model].under_way -= 1
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


def loads() -> Load:
    """Without samples while Redis is away."""
    of_pools: defaultdict[str, list[InstanceSample]] = defaultdict(list)
    serve: defaultdict[str, set[str]] = defaultdict(set)
    pool_of = dict(Instance.objects.values_list("name", "pool__name"))
    for name, model in Pool.objects.values_list("name", "model"):
        serve[model].add(name)
    try:
        for name, sample in values_of(InstanceSample, redis_keys.instance_key, list(pool_of)).items():
            of_pools[pool_of[name]].append(sample)
        live = value_of(ModelsValue, redis_keys.MODELS)
        aliases = models.parse(live.document) if live is not None else {}
    except (redis.RedisError, models.InvalidModels):
        return Load()
    for name, alias in aliases.items():
        serve[name] = {target.pool for target in alias.targets}
    return Load(of_pools, {name: frozenset(pools) for name, pools in serve.items()})


def router_urls() -> list[str]:
    try:
        statuses = values_of(RouterStatus, redis_keys.router_key, live_routers())
    except redis.RedisError:
        return []
    return [status.url for status in statuses.values() if status.url]
