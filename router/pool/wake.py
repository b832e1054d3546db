"""Requests that wait for a pool without running instances to wake up. Pure. The control worker starts the first
instance when routers report waiting requests (fleet/control/autoscaler.py).
"""

import math
from collections import deque
from dataclasses import dataclass

from router.contract.redis.published import WakeRule

MOST_BYTES = 256 * 2**20  # bytes of all waiting bodies together
UNKNOWN_S = 30.0  # expected duration before any wake has been measured
KEPT = 20  # latest wakes remembered


@dataclass(frozen=True, slots=True)
class WakeHold:
    """The terms on which a request that finds no instance may wait."""

    max_wait_s: float
    retry_after_s: int
    refused: str = ""  # why the request may not wait; empty if it may
    is_full: bool = False  # True if it may wait only by displacing another request


class Wakes:
    __slots__ = ("_took", "rule", "since", "waiting_bytes")

    def __init__(self) -> None:
        self.rule: WakeRule | None = None  # None if the pool does not wake by itself
        self.since: float | None = None  # arrival of the request that wakes it
        self.waiting_bytes = 0
        self._took: deque[float] = deque(maxlen=KEPT)  # s

    @property
    def expected_s(self) -> float:
        """Return the expected duration of a wake: the 90th percentile of the latest wakes."""
        took = sorted(self._took)
        return took[math.ceil(0.9 * len(took)) - 1] if took else UNKNOWN_S

    def hold(self, waiting: int, size: int, now: float) -> WakeHold | None:
        """Return the terms on which a request with a body of `size` bytes may wait; None if nothing will wake the
        pool."""
        rule = self.rule
        if rule is None:
            return None
        if self.since is None or (not waiting and now - self.since > rule.max_wait_s):
            self.since = now
        so_far_s, expected_s = now - self.since, self.expected_s
        left_s = max(1, math.ceil(expected_s - so_far_s if so_far_s < expected_s else expected_s))
        is_full, fits = waiting >= rule.max_held, not waiting or self.waiting_bytes + size <= MOST_BYTES
        if is_full:
            why = f"{waiting} requests wait for it already"
        elif not fits:
            why = f"requests of {self.waiting_bytes / 2**20:.0f} MiB wait for it already"
        else:
            why = ""
        refused = why and f"no instance is ready: the pool wakes, and {why}"
        return WakeHold(rule.max_wait_s, left_s, refused, is_full and fits)

    def ready(self, now: float) -> None:
        """Note that an instance takes requests now."""
        if self.since is not None:
            self._took.append(now - self.since)
            self.since = None
