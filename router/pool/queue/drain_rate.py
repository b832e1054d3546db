"""Rate at which requests leave a pool's instances, and so at which its queue drains. Pure: time is an argument.

A slot is one request's share of the pool, from its sending to its end. How long one is held is told by the last
requests that ended, and by those in flight with the time that they have taken so far; before any has ended, those are
taken for halfway. So the rate is known before the queue has moved, and falls while nothing ends. It follows the number
of slots at once: an instance that comes or goes changes how many requests are in flight, not how long each takes.
"""

from typing import Final

LEAST: Final = 16  # least number of ended requests remembered
SLOTS: Final = 3.0  # times the number in flight, as requests sent together end together
LONGER = 1.5  # most by which one of the two estimates below may exceed the other


class DrainRate:
    __slots__ = ("_began_s", "_ended", "_held_s", "_running")

    def __init__(self) -> None:
        self._running = 0
        self._began_s = 0.0  # sum of the start times of requests in flight
        self._ended = 0.0  # ended requests, fading
        self._held_s = 0.0  # their request-seconds, fading alike

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
        """Return the mean seconds until the next slot is free; None while unknown."""
        slot_s = self._slot_s(now)
        return slot_s / max(1, self._running) if slot_s > 0 else None

    def _slot_s(self, now: float) -> float:
        so_far_s = max(0.0, self._running * now - self._began_s)
        if not self._ended:
            return 2.0 * so_far_s / max(1, self._running)
        # For random ends: all time in flight divided by the number of ends. For n similar requests that were
        # sent together this is n times too long at the first end.
        at_random_s = (self._held_s + so_far_s) / self._ended
        alike_s = self._held_s / self._ended + so_far_s / (self._ended + self._running)
        return min(at_random_s, LONGER * alike_s)
