"""Requests that ended in the last minute, per pool and class: counts and sketches in slots. Time is an argument."""

from collections import Counter, deque
from typing import Any

from router.contract import sketch
from router.contract.redis.router_status import WINDOW_S, HitShare, Window
from router.request.call import Call

SLOT_S = 10.0
COUNTS = ("n", "ok", "error", "refused", "cancelled", "retries")
SKETCHES = ("ttft", "tpot", "e2e", "new_tokens", "hit_percent", "reuse_gap")


class _Slot:
    __slots__ = ("began", "counts", "decided", "hit_share", "refusals", "sketches", "started")

    def __init__(self, began: float) -> None:
        self.began = began
        self.started: Counter[int] = Counter()  # by second
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()  # by code, "" when an engine rejected the request
        self.decided = 0
        self.hit_share = 0.0  # sum of the cached shares of decided requests
        self.sketches: dict[str, sketch.Sketch] = {name: {} for name in SKETCHES}


class LatencyWindow:
    """Window of one class of a pool."""

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
        self._slot(now).started[int(now)] += 1

    def ended(self, call: Call, now: float) -> None:
        slot, outcome = self._slot(now), call.outcome
        slot.counts["n"] += 1
        slot.counts[outcome.label] += 1
        if outcome.label == "refused":
            slot.refusals[outcome.code] += 1
        if outcome.retries:
            slot.counts["retries"] += outcome.retries
        _sketch(slot, call)

    def read(self, now: float) -> Window:
        self._forget(now)
        counts: Counter[str] = Counter()
        refusals: Counter[str] = Counter()
        for slot in self._slots:
            counts.update(slot.counts)
            refusals.update(slot.refusals)
        recent = int(now) - 10
        measured: dict[str, Any] = {name: counts[name] for name in COUNTS}
        for name in SKETCHES:
            measured[name] = sketch.merge(slot.sketches[name] for slot in self._slots)
        return Window(
            **measured,
            started_10s=sum(n for slot in self._slots for second, n in slot.started.items() if second > recent),
            refusals=dict(refusals),
            hit_share=HitShare(
                n=sum(slot.decided for slot in self._slots), sum=round(sum(slot.hit_share for slot in self._slots), 6)
            ),
        )


def _sketch(slot: _Slot, call: Call) -> None:
    """Latencies of served requests only, as a rejection is fast; new tokens and hits of all decided requests."""
    sketches, add, outcome = slot.sketches, sketch.add, call.outcome
    if outcome.label == "ok":
        add(sketches["e2e"], outcome.e2e_ms)
        if outcome.ttft_ms is not None:
            add(sketches["ttft"], outcome.ttft_ms)
        if outcome.tpot_ms is not None:
            add(sketches["tpot"], outcome.tpot_ms)
    if call.decision is not None:
        tokens = call.prediction.prompt_tokens
        share = call.decision.cached_tokens / tokens if tokens else 0.0
        add(sketches["new_tokens"], call.decision.new_tokens)
        add(sketches["hit_percent"], share * 100)
        slot.decided += 1
        slot.hit_share += share
    if call.pause_s is not None:
        add(sketches["reuse_gap"], call.pause_s)
