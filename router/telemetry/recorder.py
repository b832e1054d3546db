"""Records the results of requests: tallies per pool and class, counters for /metrics, receipts for Redis."""

import itertools
from collections import Counter, defaultdict, deque
from typing import Any, Final

from router.contract.api_paths import CLASSLESS
from router.contract.redis.router_status import WINDOW_S, Window
from router.policy.types import Decision
from router.pool.pool import Pool
from router.pool.rollout import Assignment
from router.request.call import Call
from router.request.chosen import Chosen
from router.request.outcome import Outcome
from router.telemetry.delivery_tallies import DeliveryTallies
from router.telemetry.rates import RateEstimates
from router.telemetry.traffic import is_recorded
from router.telemetry.use import UseCounter
from router.telemetry.window import Tally

PENDING: Final = 10_000  # receipts kept while Redis is unreachable; the oldest are dropped first
# Generations kept in addition to the newest: switchback blocks last at least 30 s, answers may last minutes
KEPT_GENERATIONS = 4
NO_CLASS = "unknown"  # class of a request that was rejected before classification, or that needs no model
SLOT_S = 10.0


class RecentCounts:
    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[tuple[float, Counter[str]]] = deque()  # (start, counts)

    def add(self, name: str, now: float) -> None:
        slots = self._slots
        if not slots or now - slots[-1][0] >= SLOT_S:
            slots.append((now, Counter()))
            self._forget(now)
        slots[-1][1][name] += 1

    def read(self, now: float) -> dict[str, int]:
        self._forget(now)
        return dict(sum((counts for _, counts in self._slots), Counter()))

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] >= WINDOW_S:
            self._slots.popleft()


class Recorder:
    def __init__(self) -> None:
        self.pending: deque[Call] = deque()
        self._numbers = itertools.count(1)
        self.lost = 0  # receipts dropped because Redis was unreachable
        self.use = UseCounter()
        self.unwritable = 0  # receipts dropped because they could not be encoded
        self.spans: Counter[str] = Counter()  # spans by their fate (router/spans/outbox.py)
        self.traffic: Counter[str] = Counter(written=0, dropped=0)  # entries of recorded traffic
        self.tallies: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)  # by pool and class
        self.retries: Counter[tuple[str, str]] = Counter()  # (pool, failed instance)
        self.errors: Counter[tuple[str, str]] = Counter()  # (pool, code)
        self.estimates: defaultdict[str, RateEstimates] = defaultdict(RateEstimates)  # by pool
        self.offloads: Counter[tuple[str, str, str]] = Counter()  # (pool, connector, outcome)
        self.lent: Counter[tuple[str, str]] = Counter()  # (pool, "lent"): tokens that decoders lent to prefills
        # Updated for every request; adding to a Counter would take twice as long
        self.decisions: defaultdict[tuple[str, str, str], int] = defaultdict(int)  # (pool, instance, rule)
        self.bands: defaultdict[tuple[str, int, str], int] = defaultdict(int)  # (pool, band, outcome)
        self.models: Counter[tuple[str, str, str]] = Counter()  # (pool, name of the document Models, outcome)
        self.fallbacks: Counter[tuple[str, str, str]] = Counter()  # (failed pool, name, condition)
        # Recent fallbacks of each name, by pool
        self.aliases: defaultdict[str, RecentCounts] = defaultdict(RecentCounts)
        self.deliveries: dict[str, DeliveryTallies] = {}  # the newest generation, by pool
        self.closed: defaultdict[str, list[DeliveryTallies]] = defaultdict(
            list
        )  # earlier generations by pool, newest first

    def decided(self, call: Call, decision: Decision) -> None:
        counted = NO_CLASS if call.api_path in CLASSLESS else decision.request_class
        self.tallies[call.pool.name, counted].window.started(call.at)
        if call.assigned is not None and (tallies := self.delivery(call.pool)) is not None:
            tallies.decided(call, call.assigned)

    def delivery(self, pool: Pool) -> DeliveryTallies | None:
        """Return the tallies of the pool's delivery in progress."""
        split, tallies = pool.split, self.deliveries.get(pool.name)
        if split is None:
            self._forget_delivery(pool.name)
            return None
        if tallies is None or tallies.identity != split.identity:
            self._close(pool.name, split.rollout.delivery)
            tallies = self.deliveries[pool.name] = DeliveryTallies(split)
        tallies.split = split  # the split may have been published again
        return tallies

    def _close(self, pool: str, delivery: int) -> None:
        """Close a generation of the same delivery; its late answers still count for some generations."""
        ended = self.deliveries.get(pool)
        if ended is None or ended.identity[0] != delivery:
            self.closed.pop(pool, None)
            return
        ended.close()
        self.closed[pool] = [ended, *self.closed[pool]][:KEPT_GENERATIONS]

    def _forget_delivery(self, pool: str) -> None:
        self.deliveries.pop(pool, None)
        self.closed.pop(pool, None)

    def generations(self, pool: Pool) -> list[DeliveryTallies]:
        """Return the newest generation, then earlier ones whose answers still count."""
        newest = self.delivery(pool)
        return [] if newest is None else [newest, *self.closed[pool.name]]

    def ended(self, call: Call) -> None:
        pool, decision, outcome = call.pool.name, call.decision, call.outcome
        # A request that needs no model would count as fast
        counted = NO_CLASS if decision is None or call.api_path in CLASSLESS else decision.request_class
        self.tallies[pool, counted].ended(call)
        if decision is not None and decision.instance:
            self.decisions[pool, decision.instance, decision.rule] += 1
        if call.assigned is not None:
            self._ended_in_delivery(call, call.assigned)
        if pool:
            if outcome.ttft_ms is not None or outcome.offload is not None:  # only such requests yield a rate
                call.pool.measured(self.estimates[pool].ended(call))
            self.bands[pool, call.band, outcome.label] += 1
        if outcome.code or outcome.offload is not None or len(outcome.attempts) > 1:
            self._ended_unusually(pool, outcome)
        if call.alias is not None:
            self._ended_by_name(call, call.alias)
        self.use.ended(call)
        call.number = next(self._numbers)
        self.pending.append(call)
        if len(self.pending) > PENDING:
            self.traffic["dropped"] += is_recorded(self.pending.popleft())
            self.lost += 1

    def _ended_unusually(self, pool: str, outcome: Outcome) -> None:
        if outcome.offload is not None:
            self.offloads[pool, outcome.offload.connector, outcome.offload.outcome or "cancelled"] += 1
            if outcome.offload.lent_tokens:
                self.lent[pool, "lent"] += outcome.offload.lent_tokens
        if outcome.code:
            self.errors[pool, outcome.code] += 1
        for attempt in outcome.attempts[:-1]:
            self.retries[attempt.pool or pool, attempt.instance] += 1

    def _ended_by_name(self, call: Call, alias: Chosen) -> None:
        self.models[call.pool.name, alias.name, call.outcome.label] += 1
        self.aliases[call.pool.name].add(alias.name, call.at + call.outcome.e2e_ms / 1000)
        for failed, condition in alias.fell_back:
            self.fallbacks[failed, alias.name, condition] += 1

    def computed(self, pool: Pool, endpoint: str, tokens: int, seconds: float, now: float) -> None:
        """Learn from the router's own prompt, which the endpoint computed without other load; `now` is Unix time."""
        pool.measured(self.estimates[pool.name].probed(pool, endpoint, tokens, seconds, now))

    def _ended_in_delivery(self, call: Call, assigned: Assignment) -> None:
        """Count the ended request in the generation that decided it."""
        pool = call.pool.name
        if pool in self.deliveries:
            for tallies in (self.deliveries[pool], *self.closed[pool]):
                tallies.ended(call, assigned)

    def classes(self, now: float) -> dict[str, dict[str, Window]]:
        """Return windows by pool and class."""
        windows: dict[str, dict[str, Window]] = {}
        for (pool, request_class), tally in self.tallies.items():
            if request_class != NO_CLASS:
                windows.setdefault(pool, {})[request_class] = tally.window.read(now)
        return windows

    def outcomes(self) -> dict[tuple[str, str, str], int]:
        """Return requests since the start by (pool, class, outcome)."""
        return {
            (*key, outcome): count for key, tally in self.tallies.items() for outcome, count in tally.outcomes.items()
        }

    def tokens(self) -> dict[tuple[str, str], int]:
        """Return tokens since the start by (pool, kind)."""
        total = Counter(self.lent)
        for (pool, _), tally in self.tallies.items():
            for kind, count in tally.tokens.items():
                total[pool, kind] += count
        return dict(total)

    def forget_pool(self, pool: str) -> None:
        """Drop the counters of a deleted pool; otherwise the labels of experiments' pools would accumulate."""
        tables: list[dict[Any, Any]] = [
            *(
                self.tallies,
                self.retries,
                self.errors,
                self.decisions,
                self.offloads,
                self.lent,
                self.bands,
                self.models,
                self.fallbacks,
            )
        ]
        for table in tables:
            for key in [key for key in table if key[0] == pool]:
                del table[key]
        self.estimates.pop(pool, None)
        self.aliases.pop(pool, None)
        self._forget_delivery(pool)
