"""Who holds what, of all instances together: chains of chunks, cut only where different instances hold what follows.

A run is a stretch of a chain that the same instances hold from its first chunk to its last. A chunk's hash stands for
all chunks before it as well, so a run is found by its first hash, two stretches are equal when their last hashes are,
and where they part is found by bisection. Chains that leave a run anywhere are runs of their own, found by their first
hash again; `parent` leads back from them, which is how what an instance forgets is found from the end of a chain.
"""

from array import array
from collections.abc import Sequence
from sys import maxsize

from router.prefix.common import common


class SharedRun:
    __slots__ = ("hashes", "holders", "parent", "start")

    def __init__(self, start: int, hashes: "array[int]", holders: int, parent: "SharedRun | None") -> None:
        self.start = start  # chunks before it in its chain
        self.hashes = hashes
        self.holders = holders  # bit mask of instances
        self.parent = parent  # has, or had before it was cut or joined to another, the chunk before `start`

    @property
    def end(self) -> int:
        return self.start + len(self.hashes)

    def shared(self, hashes: Sequence[int]) -> int:
        """Up to where in its chain it is the same as this one, which begins as it does."""
        return self.start + common(self.hashes, hashes, self.start, len(hashes))


Path = list[
    tuple[SharedRun, int]
]  # the runs along a chain, each with the place in the chain up to which it is followed


class Forest:
    def __init__(self) -> None:
        self._by_first: dict[int, SharedRun] = {}
        self.chunks = 0  # different ones

    def __len__(self) -> int:
        return len(self._by_first)

    def along(self, hashes: Sequence[int]) -> Path:
        """As far as anybody holds the chain."""
        get, place, end = self._by_first.get, 0, len(hashes)
        path: Path = []
        while place < end:
            run = get(hashes[place])
            if run is None or run.start != place:
                break
            place = run.shared(hashes)
            path.append((run, place))
        return path

    def hold(self, bit: int, hashes: Sequence[int], path: Path) -> Path:
        """The instance holds the whole chain from now on; `path` is what `along` says. The path as it is then."""
        marked: Path = []
        for known, upto in path:
            run = known
            if not run.holders & bit:
                if upto < run.end:
                    run = self._cut(run, upto)
                run.holders |= bit
            last, place = marked[-1] if marked else (None, 0)
            if last is not None and last.holders == run.holders and last.end == place and run.end == upto:
                self._join(last, run)
                marked[-1] = last, upto
            else:
                marked.append((run, upto))
        known_chunks = path[-1][1] if path else 0
        if known_chunks < len(hashes):
            self._grow(bit, hashes, known_chunks, marked)
        return marked

    def _grow(self, bit: int, hashes: Sequence[int], known: int, path: Path) -> None:
        """What nobody holds ends the chain for everybody, so that all the rest is new."""
        fresh = array("Q", hashes[known:])
        self.chunks += len(fresh)
        last = path[-1][0] if path else None
        if last is not None and last.holders == bit and last.end == known:
            last.hashes += fresh
            path[-1] = last, len(hashes)
        else:
            run = self._by_first[fresh[0]] = SharedRun(known, fresh, bit, last)
            path.append((run, len(hashes)))

    def forget(self, bit: int, run: SharedRun, low: int, high: int) -> SharedRun:
        """The instance holds the chain that passes `run` up to `low` only, no more up to `high`: a run to know it by
        from now on, where `low` is not the beginning."""
        here = at(run, high)
        while here is not None and high > low:
            if here.start < low:
                here = self._keep_until(here, low, bit)
                high = low
            else:
                high = here.start
                self._leave(here, bit)
                here = at(here.parent, high)
        return here or run

    def _keep_until(self, run: SharedRun, low: int, bit: int) -> SharedRun:
        if run.holders == bit:
            self.chunks -= run.end - low
            del run.hashes[low - run.start :]
            return run
        head = self._cut(run, low)
        run.holders &= ~bit
        return head

    def _leave(self, run: SharedRun, bit: int) -> None:
        left = run.holders & ~bit
        if run.holders and not left:
            self.chunks -= len(run.hashes)
            self._unlist(run)
        run.holders = left

    def _unlist(self, run: SharedRun) -> None:
        # XXH64 can be made to collide on purpose: another may be known by its hash. Guesses are wrong then, no more.
        if self._by_first.get(run.hashes[0]) is run:
            del self._by_first[run.hashes[0]]

    def _cut(self, run: SharedRun, place: int) -> SharedRun:
        """The part before `place`, as a run of its own. The rest stays what it was to whoever comes from behind."""
        length = place - run.start
        head = SharedRun(run.start, run.hashes[:length], run.holders, run.parent)
        run.start, run.hashes, run.parent = place, run.hashes[length:], head
        self._by_first[head.hashes[0]] = head
        self._by_first[run.hashes[0]] = run
        return head

    def _join(self, run: SharedRun, after: SharedRun) -> None:
        """Whoever still comes to `after` is led on to the run that has its chunks now."""
        self._unlist(after)
        run.hashes += after.hashes
        after.start, after.parent = maxsize, run


def at(run: SharedRun | None, place: int) -> SharedRun | None:
    """The run with the chunk before `place` of the chain that passes `run`."""
    while run is not None and run.start >= place:
        run = run.parent
    return run


def parting(run: SharedRun, place: int, path: dict[SharedRun, int]) -> int:
    """Where the chain that passes `run` up to `place` leaves the path."""
    here = at(run, place)
    while here is not None and here not in path:
        place = here.start
        here = at(here.parent, place)
    if here is None:
        return 0
    upto = path[here]
    return upto if upto < place else place
