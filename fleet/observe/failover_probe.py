"""Probes the instances of a silent node from the control host. A silent worker does not mean a dead node: an engine
that answers keeps its requests. An engine that does not answer becomes unreachable, and later starts on another node
(fleet/plan/reconcile.py).
"""

import asyncio
import datetime as dt
import time
from dataclasses import replace

from django.utils import timezone

from fleet.control import nodes
from fleet.kinds import KINDS
from fleet.models import Instance, State
from fleet.observe.engine_pages import EnginePages
from fleet.observe.scrape import advance_each, answering_of, apply_move, record_of
from fleet.plan.state import Health, Observation, next_move

PROBE_S = 2.0
# Time without an answer before an instance leaves routing: remote probes are less reliable than the node's own.
PATIENCE_S = 5.0
_PROBED = (State.READY, State.DRAINING, State.UNREACHABLE)


class FailoverProbe:
    """Probes instances and remembers their latest answers, for one process and event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pages = EnginePages()
        self._began = time.monotonic()
        self._answered: dict[tuple[str, int], float] = {}  # (instance, epoch) → Unix seconds

    def close(self) -> None:
        self._pages.prober.keep_only(set())
        self._loop.run_until_complete(asyncio.sleep(0))  # lets the transports close
        self._loop.close()

    def step(self, now: dt.datetime) -> list[str]:
        """Probe once. Return the names of instances that changed state."""
        asked = time.monotonic()
        if not nodes.publish(now) or time.monotonic() - asked > PATIENCE_S:
            self._began = time.monotonic()  # Workers also wait for Redis: the silence is then due to Redis.
        # Workers need time for a heartbeat after a start of the whole system, and after Redis has returned.
        if time.monotonic() - self._began >= nodes.SILENT_S and nodes.record_silent(now):
            nodes.publish(now)
        rows = self._rows(now)
        answers = self._loop.run_until_complete(self._ask(rows)) if rows else []
        at = timezone.now().timestamp()
        self._remember(rows, answers, at)
        by_name = dict(zip((row.name for row in rows), answers, strict=True))
        return advance_each(rows, lambda row: self._advance(row, by_name[row.name], at))

    def _rows(self, now: dt.datetime) -> list[Instance]:
        silent = nodes.silent(now)
        if not silent:
            return []
        found = Instance.objects.select_related("pool").filter(node__in=silent, state__in=_PROBED)
        return [row for row in found.exclude(url="") if row.pool.kind in KINDS]

    async def _ask(self, rows: list[Instance]) -> list[tuple[Health, str]]:
        return await asyncio.gather(*(self._pages.health(row, answering_of(row).health_path, PROBE_S) for row in rows))

    def _remember(self, rows: list[Instance], answers: list[tuple[Health, str]], at: float) -> None:
        before, self._answered = self._answered, {}
        for row, (health, _) in zip(rows, answers, strict=True):
            key = (row.name, row.epoch)
            self._answered[key] = at if health == "ok" else before.get(key, at)
        self._pages.prober.keep_only({row.url + answering_of(row).health_path for row in rows})

    def _advance(self, row: Instance, answer: tuple[Health, str], at: float) -> bool:
        health, error = answer
        silent_s = at - self._answered[row.name, row.epoch]
        observation = Observation(at, True, False, health, True, False, silent_s, error, "")
        step = next_move(record_of(row), observation)
        if step is None or (step.to == State.UNREACHABLE and silent_s < PATIENCE_S):
            return False
        if step.to == State.UNREACHABLE:
            step = replace(step, reason=f"node {row.node} is silent; {step.reason}")
        return apply_move(row, step, at, None)
