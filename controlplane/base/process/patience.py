"""A wait that lasts as long as something makes progress, so that a slow machine is not mistaken for a hung process.
Pure.
The caller observes a mark (CPU time, length of a log, applied migrations); a change of it is progress.

    OutOfPatience
    ├── Stands      the mark has not changed for a while
    └── Endless     the mark keeps changing without a result
"""

from collections.abc import Hashable

IDLE_S = 60.0
LONGEST_S = 1_800.0
SAY_EVERY_S = 15.0


class OutOfPatience(Exception):
    """The wait has lasted long enough; the message has its duration."""


class Stands(OutOfPatience):
    pass


class Endless(OutOfPatience):
    pass


class Patience:
    """The patience for one wait, which began at `now` (s)."""

    def __init__(self, now: float, idle_s: float = IDLE_S, longest_s: float = LONGEST_S) -> None:
        self._began = self._moved = self._said = now
        self._idle_s, self._longest_s = idle_s, longest_s
        self._mark: Hashable = None

    def look(self, mark: Hashable, now: float) -> bool:
        """Return whether to report that the wait continues. Raise OutOfPatience."""
        if mark != self._mark:
            self._mark, self._moved = mark, now
        if now - self._moved >= self._idle_s:
            raise Stands(f"no progress for {self._idle_s:g} s")
        if now - self._began >= self._longest_s:
            raise Endless(f"not done after {self._longest_s:,.0f} s")
        if now - self._said < SAY_EVERY_S:
            return False
        self._said = now
        return True
