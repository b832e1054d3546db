"""The chunks of all instances: chains of hashes, cut into runs only where the holders change. A run is a part of a
chain that the same instances hold from its first chunk to its last. A chunk's hash also covers all chunks before it. A
run is therefore identified by its first hash, two parts are equal if their last hashes are equal, and the point where
they diverge is located by bisection. Chains that branch off a run are separate runs, identified by their first hash;
`parent` leads back, so chunks that an instance loses are reached from the end of a chain.
"""

from array import array
from collections.abc import Sequence
from sys import maxsize

from router.prefix.common import common


class SharedRun:
    __slots__ = ("hashes", "holders", "parent", "start")

    def __init__(self, start: int, hashes: "array[int]", holders: int, parent: "SharedRun | None") -> None:
        self.start = start  # position in the chain
        self.hashes = hashes
        self.holders = holders  # bit mask of instances
        self.parent = parent  # run with the chunk before `start`, possibly cut or joined since

    @property
    def end(self) -> int:
        return self.start + len(self.hashes)


# Runs along a chain, each with the position up to which the chain follows it
Path = list[tuple[SharedRun, int]]


class Forest:
    def __init__(self) -> None:
        self._by_first: dict[int, SharedRun] = {}
        # The latest chain: prompts are first looked up, then inserted
        self._followed: tuple[Sequence[int], Path] = (), []
        self.chunks = 0  # distinct chunks

    def __len__(self) -> int:
        return len(self._by_first)

    def along(self, hashes: Sequence[int]) -> Path:
        """Return the runs of the chain, as far as any instance holds them."""
        if hashes is self._followed[0]:
            return self._followed[1]
        get, position, end = self._by_first.get, 0, len(hashes)
        path: Path = []
        while position < end:
            run = get(hashes[position])
            if run is None or run.start != position:
                break
            own = run.hashes
            upto = position + len(own)
            if upto > end or own[-1] != hashes[upto - 1]:  # false if the whole run is on the chain, the usual case
                upto = position + common(own, hashes, position, end)
            position = upto
            path.append((run, position))
        self._followed = hashes, path
        return path

    def hold(self, bit: int, hashes: Sequence[int], path: Path) -> Path:
        """Add the instance to the whole chain; `path` is the result of `along`. Return the new path."""
        self._followed = (), []
        marked: Path = []
        for known, upto in path:
            run = known
            if not run.holders & bit:
                if upto < run.start + len(run.hashes):
                    run = self._cut(run, upto)
                run.holders |= bit
            last, position = marked[-1] if marked else (None, 0)
            if last is not None and last.holders == run.holders and last.end == position and run.end == upto:
                self._join(last, run)
                marked[-1] = last, upto
            else:
                marked.append((run, upto))
        known_chunks = path[-1][1] if path else 0
        if known_chunks < len(hashes):
            self._grow(bit, hashes, known_chunks, marked)
        return marked

    def _grow(self, bit: int, hashes: Sequence[int], known: int, path: Path) -> None:
        """Add the rest of the chain: all chunks after the first one without a holder are new."""
        fresh = array("Q", hashes[known:])
        self.chunks += len(fresh)
        last = path[-1][0] if path else None
        if last is not None and last.holders == bit and last.start + len(last.hashes) == known:
            last.hashes += fresh
            path[-1] = last, len(hashes)
        else:
            run = self._by_first[fresh[0]] = SharedRun(known, fresh, bit, last)
            path.append((run, len(hashes)))

    def forget(self, bit: int, run: SharedRun, low: int, high: int) -> SharedRun:
        """Remove the instance from the chain that passes `run`, between `low` and `high`. Return the run that leads to
        the rest, unless `low` is the beginning."""
        self._followed = (), []
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
        # XXH64 collisions can be crafted, but they only make predictions wrong.
        if self._by_first.get(run.hashes[0]) is run:
            del self._by_first[run.hashes[0]]

    def _cut(self, run: SharedRun, position: int) -> SharedRun:
        """Split off the part before `position` as a new run. The rest keeps its identity for the runs after it."""
        length = position - run.start
        head = SharedRun(run.start, run.hashes[:length], run.holders, run.parent)
        run.start, run.hashes, run.parent = position, run.hashes[length:], head
        self._by_first[head.hashes[0]] = head
        self._by_first[run.hashes[0]] = run
        return head

    def _join(self, run: SharedRun, after: SharedRun) -> None:
        """Append `after` to `run`; references to `after` are redirected to `run`."""
        self._unlist(after)
        run.hashes += after.hashes
        after.start, after.parent = maxsize, run


def at(run: SharedRun | None, position: int) -> SharedRun | None:
    """Return the run that holds the chunk before `position` on the chain that passes `run`."""
    while run is not None and run.start >= position:
        run = run.parent
    return run


def parting(run: SharedRun, position: int, path: dict[SharedRun, int]) -> int:
    """Return the position at which the chain that passes `run` up to `position` diverges from the path."""
    here: SharedRun | None = run
    while here is not None:
        if here.start < position:  # inlined `at`
            if here in path:
                break
            position = here.start
        here = here.parent
    else:
        return 0
    upto = path[here]
    return upto if upto < position else position
