"""Requests that ended in the last minute, per pool and class, as counts and sketches in time slots. Time is an
argument."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any, Final

from router.contract import ranks
from router.contract.api_paths import UNCOMPUTED
from router.contract.metrics.metrics_page import Histogram
from router.contract.redis.router_status import WINDOW_S, HitShare, Moved, Window
from router.contract.values import sketch
from router.policy.types import Decision
from router.request.call import Call

SLOT_S: Final = 10.0
OUTCOMES = ("ok", "error", "client_error", "refused", "cancelled")
COUNTS = (*OUTCOMES, "retries")
SKETCHES = ("ttft", "tpot", "e2e", "new_tokens", "hit_percent", "reuse_gap", "queued")


class _Slot:
    __slots__ = ("began", "chosen", "counts", "hit_share", "moved", "refusals", "sketches", "started")

    def __init__(self, began: float) -> None:
        self.began = began
        # Adding to a Counter would take twice as long
        self.started: defaultdict[int, int] = defaultdict(int)  # by second
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.refusals: Counter[str] = Counter()  # by code, "" when an engine rejected the request
        self.chosen: defaultdict[tuple[str, str], int] = defaultdict(int)  # by rule and instance
        self.moved: dict[tuple[str, str], list[int]] = {}  # by prefill and decode instance: offloads, bytes
        self.hit_share = 0.0  # sum of the cached shares of decided requests
        self.sketches: dict[str, sketch.Sketch] = {name: {} for name in SKETCHES}


class LatencyWindow:
    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()

    def _slot(self, now: float) -> _Slot:
        slots = self._slots
        if not slots or now - slots[-1].began >= SLOT_S:
            slots.append(_Slot(now))
            self._forget(now)
        return slots[-1]

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0].began >= WINDOW_S:
            self._slots.popleft()

    def started(self, now: float) -> None:
        slots = self._slots
        slot = slots[-1] if slots and now - slots[-1].began < SLOT_S else self._slot(now)
        slot.started[int(now)] += 1

    def ended(self, call: Call, now: float) -> None:
        slots, outcome = self._slots, call.outcome
        slot = slots[-1] if slots and now - slots[-1].began < SLOT_S else self._slot(now)
        slot.counts[outcome.label] += 1
        if outcome.label == "refused":
            slot.refusals[outcome.code] += 1
        if len(outcome.attempts) > 1:
            slot.counts["retries"] += outcome.retries
        values = _decided(slot, call, call.decision) if call.decision is not None else []
        sketches = slot.sketches
        if outcome.label == "ok":  # served requests only, because rejections are fast
            if not outcome.is_brief:
                values.append((sketches["e2e"], outcome.e2e_ms))
            if outcome.ttft_ms is not None:
                values.append((sketches["ttft"], outcome.ttft_ms))
            if outcome.tpot_ms is not None:
                values.append((sketches["tpot"], outcome.tpot_ms))
        if call.pause_s is not None:
            values.append((sketches["reuse_gap"], call.pause_s))
        sketch.add_each(values)

    def read(self, now: float) -> Window:
        self._forget(now)
        counts: Counter[str] = Counter()
        refusals: Counter[str] = Counter()
        for slot in self._slots:
            counts.update(slot.counts)
            refusals.update(slot.refusals)
        counts["ok"] += counts["picked"]  # requests carried by a gateway
        recent = int(now) - 10
        measured: dict[str, Any] = {name: counts[name] for name in COUNTS}
        measured["n"] = sum(counts[name] for name in OUTCOMES)
        for name in SKETCHES:
            measured[name] = sketch.merge(slot.sketches[name] for slot in self._slots)
        decided = sketch.count(measured["new_tokens"])
        queued = measured["queued"]
        if at_once := decided - sketch.count(queued):
            queued[sketch.ZERO] = queued.get(sketch.ZERO, 0) + at_once
        return Window(
            **measured,
            started_10s=sum(n for slot in self._slots for second, n in slot.started.items() if second > recent),
            refusals=dict(refusals),
            chosen=_chosen(self._slots),
            moved=_moved(self._slots),
            hit_share=HitShare(n=decided, sum=round(sum(slot.hit_share for slot in self._slots), 6)),
        )


def _decided(slot: _Slot, call: Call, decision: Decision) -> list[tuple[sketch.Sketch, float]]:
    """Count where the request was sent, and the KV blocks that were moved for it. Return new tokens and hits, each with
    its sketch."""
    sketches, outcome, tokens = slot.sketches, call.outcome, call.prediction.prompt_tokens
    share = decision.cached_tokens / tokens if tokens else 0.0
    values: list[tuple[sketch.Sketch, float]] = [(sketches["new_tokens"], decision.new_tokens)]
    values.append((sketches["hit_percent"], share * 100))
    slot.hit_share += share
    if outcome.queued_s:  # `read` adds the requests that did not wait
        values.append((sketches["queued"], outcome.queued_s * 1000))
    if not decision.instance:
        return values
    slot.chosen[decision.rule, decision.instance] += 1
    if (offload := outcome.offload) is not None and offload.outcome == "ok":
        moved = slot.moved.setdefault((offload.prefill, decision.instance), [0, 0])
        moved[0] += 1
        moved[1] += offload.transfer_bytes or 0
    return values


def _chosen(slots: Iterable[_Slot]) -> dict[str, dict[str, int]]:
    total: dict[str, Counter[str]] = {}
    for slot in slots:
        for (rule, instance), n in slot.chosen.items():
            total.setdefault(rule, Counter())[ranks.instance_of(instance)] += n
    return {rule: dict(counts) for rule, counts in total.items()}


def _moved(slots: Iterable[_Slot]) -> dict[str, dict[str, Moved]]:
    total: dict[tuple[str, str], list[int]] = {}
    for slot in slots:
        for (prefill, decode), (n, size) in slot.moved.items():
            known = total.setdefault((ranks.instance_of(prefill), ranks.instance_of(decode)), [0, 0])
            known[0] += n
            known[1] += size
    arcs: dict[str, dict[str, Moved]] = {}
    for (prefill, decode), (n, size) in total.items():
        arcs.setdefault(prefill, {})[decode] = Moved(n=n, size=size)
    return arcs


# The counts and latencies of one class of a pool: over the last minute for the dashboard, and totals for /metrics
TOKEN_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000)
REQUEST_MS = (*TOKEN_MS, 600_000, 1_200_000, 1_800_000, 3_600_000)  # up to the longest time-out of a policy


class Tally:
    __slots__ = (
        *("_cached", "_output", "_predicted", "_prompt", "_reports", "_reports_cached"),
        *("e2e", "outcomes", "tpot", "ttft", "window"),
    )

    def __init__(self) -> None:
        self.window = LatencyWindow()
        # Adding to a Counter would take twice as long
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self._prompt = self._output = self._cached = self._predicted = 0  # tokens
        # Whether any answer reported input or output tokens, and whether any reported cached tokens
        self._reports = self._reports_cached = False
        self.ttft = Histogram(REQUEST_MS)
        self.tpot = Histogram(TOKEN_MS)
        self.e2e = Histogram(REQUEST_MS)

    def ended(self, call: Call) -> None:
        outcome = call.outcome
        self.outcomes[outcome.label] += 1
        if call.decision is not None:
            self.window.ended(call, call.at + outcome.e2e_ms / 1000)
        if outcome.label == "ok":
            if not outcome.is_brief or call.api_path in UNCOMPUTED:
                self.e2e.observe(outcome.e2e_ms)
            if outcome.ttft_ms is not None:
                self.ttft.observe(outcome.ttft_ms)
            if outcome.tpot_ms is not None:
                self.tpot.observe(outcome.tpot_ms)
        usage, decision = outcome.usage, call.decision
        if usage is None or decision is None:
            return
        self._reports = True
        self._prompt += usage.prompt_tokens or 0
        self._output += usage.output_tokens or 0
        cached = usage.cached_tokens
        if cached is not None:
            self._reports_cached = True
            self._cached += cached
            self._predicted += decision.cached_tokens

    @property
    def tokens(self) -> dict[str, int]:
        """Return the tokens by kind."""
        first = {"prompt": self._prompt, "output": self._output} if self._reports else {}
        return first | {"cached": self._cached, "cached_predicted": self._predicted} if self._reports_cached else first
