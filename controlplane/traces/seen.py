"""A set of block ids kept as disjoint intervals: a long session's prefix costs one look, not one for each block."""

from bisect import bisect_left, bisect_right


class BlockIntervals:
    """Ids that have been added."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def matched(self, run: range) -> int:
        """How many ids from the start of `run` on are in the set, up to the first that is not."""
        place = bisect_right(self._starts, run.start) - 1
        if place < 0:
            return 0
        return max(0, min(run.stop, self._stops[place]) - run.start)

    def add(self, run: range) -> None:
        """Put every id of a run in, joining the intervals that it touches."""
        if not run:
            return
        first = bisect_left(self._stops, run.start)
        last = bisect_right(self._starts, run.stop)
        start = min([run.start, *self._starts[first : first + 1]]) if first < last else run.start
        stop = max([run.stop, *self._stops[last - 1 : last]]) if first < last else run.stop
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
