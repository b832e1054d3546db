"""How fast requests leave the instances of one pool, and so how fast its queue drains. Pure: time is an argument.

A slot, one request's share of the pool from its sending to its end, is held for the time that all requests were in
flight together, divided by the number of those that ended. Those still in flight count with the time that they have
taken so far, so the rate is known before the queue has moved, and falls while nothing ends. It follows the number of
slots at once: an instance that comes or goes changes how many requests are in flight, not how long each of them takes.
"""

import math

MEMORY_S = 10.0  # the shortest time constant of forgetting
SLOTS = 3.0  # times as long as a slot is held: requests that were sent together end together


class DrainRate:
    __slots__ = ("_at", "_busy_s", "_ended", "_running")

    def __init__(self) -> None:
        self._at = 0.0
        self._running = 0
        self._busy_s = 0.0  # request-seconds in flight, fading
        self._ended = 0.0  # requests, fading alike

    def began(self, now: float) -> None:
        self._advance(now)
        self._running += 1

    def ended(self, now: float) -> None:
        self._advance(now)
        self._running -= 1
        self._ended += 1.0

    def turn_s(self, now: float) -> float | None:
        """Seconds until the next slot is free, on average; None while nothing is known."""
        self._advance(now)
        slot_s = self._slot_s()
        return slot_s / max(1, self._running) if slot_s > 0 else None

    def _slot_s(self) -> float:
        if self._ended:
            return self._busy_s / self._ended
        return 2.0 * self._busy_s / max(1, self._running)  # before the first has ended: they are halfway

    def _advance(self, now: float) -> None:
        passed_s, self._at = now - self._at, now
        if passed_s <= 0 or not self._running:
            return
        if self._ended <= 1.0:  # the last one is not forgotten
            self._busy_s += self._running * passed_s
            return
        memory_s = max(MEMORY_S, SLOTS * self._slot_s())
        kept = math.exp(-passed_s / memory_s)
        self._ended *= kept
        self._busy_s = self._busy_s * kept + self._running * memory_s * (1.0 - kept)
