"""What became of each request: windows per pool and class, counters for /metrics, receipts waiting for Redis."""

import time
from collections import Counter, deque
from typing import Any

from router.call import Call
from router.histogram import Histogram
from router.policy.types import Decision
from router.window import Window

PENDING = 10_000  # receipts kept while Redis is away; the oldest go first
NO_CLASS = "unknown"  # of a request that was refused before it had one


class Recorder:
    def __init__(self) -> None:
        self.pending: deque[Call] = deque()
        self.lost = 0  # receipts dropped because Redis was away
        self.windows: dict[tuple[str, str], Window] = {}
        self.requests: Counter[tuple[str, str, str]] = Counter()  # (pool, class, outcome)
        self.retries: Counter[tuple[str, str]] = Counter()  # (pool, instance that failed)
        self.refusals: Counter[tuple[str, str]] = Counter()  # (pool, code)
        self.decisions: Counter[tuple[str, str, str]] = Counter()  # (pool, instance, rule)
        self.tokens: Counter[tuple[str, str]] = Counter()  # (pool, kind)
        self.ttft: dict[tuple[str, str], Histogram] = {}
        self.tpot: dict[tuple[str, str], Histogram] = {}
        self.e2e: dict[tuple[str, str], Histogram] = {}

    def window(self, pool: str, request_class: str) -> Window:
        key = (pool, request_class)
        window = self.windows.get(key)
        if window is None:
            window = self.windows[key] = Window()
        return window

    def decided(self, call: Call, decision: Decision) -> None:
        self.window(call.pool.name, decision.request_class).started(call.at)

    def ended(self, call: Call) -> None:
        pool = call.pool.name
        request_class = call.decision.request_class if call.decision is not None else NO_CLASS
        key = (pool, request_class)
        self.requests[pool, request_class, call.outcome] += 1
        if call.decision is not None:
            self.window(pool, request_class).ended(call, time.time())
        if call.instance and call.decision is not None:
            self.decisions[pool, call.instance, call.decision.rule] += 1
        if call.code:
            self.refusals[pool, call.code] += 1
        if call.outcome == "ok":
            _observe(self.e2e, key, call.e2e_ms)
            _observe(self.ttft, key, call.ttft_ms)
            _observe(self.tpot, key, call.tpot_ms)
        self._count_attempts(pool, call)
        self._count_tokens(pool, call)
        self._keep(call)

    def _count_attempts(self, pool: str, call: Call) -> None:
        for attempt in call.attempts[:-1]:
            self.retries[pool, attempt.instance] += 1

    def _count_tokens(self, pool: str, call: Call) -> None:
        usage = call.usage
        if usage is None or call.decision is None:
            return
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
            ("cached_predicted", call.decision.cached_tokens if usage.cached_tokens is not None else None),
        ):
            if count:
                self.tokens[pool, kind] += count

    def _keep(self, call: Call) -> None:
        call.let_go()
        self.pending.append(call)
        if len(self.pending) > PENDING:
            self.pending.popleft()
            self.lost += 1

    def classes(self, now: float) -> dict[str, dict[str, Any]]:
        """{pool: {class: Window}} as in wire.py."""
        documents: dict[str, dict[str, Any]] = {}
        for (pool, request_class), window in self.windows.items():
            documents.setdefault(pool, {})[request_class] = window.document(now)
        return documents

    def forget_pool(self, pool: str) -> None:
        """A pool is no more; the labels of an experiment's would otherwise stay for ever."""
        tables: list[dict[Any, Any]] = [self.windows, self.requests, self.retries, self.refusals, self.decisions]
        for table in [*tables, self.tokens, self.ttft, self.tpot, self.e2e]:
            for key in [key for key in table if key[0] == pool]:
                del table[key]


def _observe(table: dict[tuple[str, str], Histogram], key: tuple[str, str], value: float | None) -> None:
    if value is None:
        return
    histogram = table.get(key)
    if histogram is None:
        histogram = table[key] = Histogram()
    histogram.observe(value)
