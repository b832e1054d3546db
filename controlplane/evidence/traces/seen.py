"""A set of block ids as disjoint intervals: the prefix of a long session costs one lookup, not one for each block."""

from bisect import bisect_left, bisect_right

MAX_INTERVALS = 100_000  # Adding takes time with their number; blocks of real traces are numbered densely.


class TooFragmented(Exception):
    """The set has more than MAX_INTERVALS intervals."""


class BlockIntervals:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def matched(self, run: range) -> int:
        """Count the ids of `run` in the set, from its start up to the first missing one."""
        place = bisect_right(self._starts, run.start) - 1
        if place < 0:
            return 0
        return max(0, min(run.stop, self._stops[place]) - run.start)

    def add(self, run: range) -> None:
        """Add every id of a run, joining the intervals that it touches."""
        if not run:
            return
        first = bisect_left(self._stops, run.start)
        last = bisect_right(self._starts, run.stop)
        start = min([run.start, *self._starts[first : first + 1]]) if first < last else run.start
        stop = max([run.stop, *self._stops[last - 1 : last]]) if first < last else run.stop
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        if len(self._starts) > MAX_INTERVALS:
            raise TooFragmented
