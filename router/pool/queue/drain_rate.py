"""The rate at which requests leave a pool's instances, and therefore the rate at which its queue drains. Pure: time is
an argument. A slot is one request's share of the pool, from its sending to its end. The time for which a slot is held
is estimated from the last requests that ended, and from those in flight with the time they have taken so far; before
any has ended, those in flight are assumed to be halfway. The rate is therefore known before the queue has moved, and
falls while nothing ends. It reacts at once to the number of slots: an instance that joins or leaves changes the number
of requests in flight, not their durations.
"""

from typing import Final

LEAST: Final = 16  # smallest number of ended requests that are remembered
SLOTS: Final = 3.0  # ended requests remembered per request in flight, because requests sent together end together
LONGER = 1.5  # largest ratio between the two estimates below


class DrainRate:
    __slots__ = ("_began_s", "_ended", "_held_s", "_running")

    def __init__(self) -> None:
        self._running = 0
        self._began_s = 0.0  # sum of the start times of requests in flight
        self._ended = 0.0  # number of ended requests, with decaying weights
        self._held_s = 0.0  # their request-seconds, with the same weights

    def began(self, now: float) -> None:
        self._running += 1
        self._began_s += now

    def ended(self, now: float, began: float) -> None:
        kept = 1.0 - 1.0 / max(LEAST, SLOTS * self._running)
        self._running -= 1
        self._began_s = self._began_s - began if self._running else 0.0
        self._ended = self._ended * kept + 1.0
        self._held_s = self._held_s * kept + max(0.0, now - began)

    def turn_s(self, now: float) -> float | None:
        """Return the mean seconds until the next slot becomes free; None while unknown."""
        slot_s = self._slot_s(now)
        return slot_s / max(1, self._running) if slot_s > 0 else None

    def _slot_s(self, now: float) -> float:
        so_far_s = max(0.0, self._running * now - self._began_s)
        if not self._ended:
            return 2.0 * so_far_s / max(1, self._running)
        # If ends are random: all time in flight divided by the number of ends. For n similar requests sent together,
        # this is n times too long at the first end.
        at_random_s = (self._held_s + so_far_s) / self._ended
        alike_s = self._held_s / self._ended + so_far_s / (self._ended + self._running)
        return min(at_random_s, LONGER * alike_s)
