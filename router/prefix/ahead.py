"""What an instance will hold when a request that is sent to it now gets its turn; the exact index says what it holds.

Between the two lie the requests that were sent there before and have not had their turn. What they compute will be
held, which the engine tells only once it does so (`expected`). And it takes room: with its cache full an engine evicts
for it what no request uses (`idle`), the one that was used longest ago first and a chain's end before its beginning, so
that a prefix which is held now may be gone by then. The order of use is kept of some of the blocks, drawn by their
hash, which stand for all.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import islice

SAMPLES = 8192  # blocks of an instance whose use is kept in order, at most
LATE_S = 1.0  # after a request's end its blocks are told of, or never will be
_ENTRY_BYTES = 110
ALL_KNOWN = 0.9  # of the blocks, by the samples: the rest is chance


class Sent:
    """One request under way on one instance."""

    __slots__ = ("ahead", "fresh", "samples")

    def __init__(self, ahead: "Ahead", fresh: Sequence[int], samples: Sequence[int]) -> None:
        self.ahead = ahead
        self.fresh = fresh  # blocks that were not held when it was sent; once it is over, those still not told of
        self.samples = samples  # of all its blocks, from the prompt's end to its beginning

    def over(self, now: float) -> None:
        """In whatever way; `now`: s, monotonic."""
        self.ahead.ended(self, now)


class Ahead:
    """Of one instance; all sizes in blocks, on the device."""

    __slots__ = (
        "_again",
        "_cutoff",
        "_expected",
        "_idle",
        "_leaving",
        "_lost",
        "_mask",
        "_next",
        "_room",
        "_under_way",
        "_used",
        "held",
    )

    def __init__(self, room: int) -> None:
        self.held = 0  # now, each copy counted
        self._room = 0
        self._mask = 0  # blocks whose hash has none of these bits are samples
        self._idle: dict[int, int] = {}  # samples that no request uses → when they were last used, longest ago first
        self._next = 1  # the next use
        self._used: dict[int, int] = {}  # samples → requests under way with them
        self._lost: set[int] = set()  # of them, those evicted before the request had its turn
        self._expected: dict[int, int] = {}  # blocks not told of yet → requests that compute or await them
        self._again: dict[int, None] = {}  # of them, those held now, but not any more when their turn comes
        self._under_way = 0  # requests
        self._leaving: deque[tuple[float, Sent]] = deque()  # those that are over: what they computed may be told yet
        self._cutoff: int | None = None  # what was used before will be evicted; None: to be found
        self.resize(room)

    @property
    def bytes(self) -> int:
        """Memory, roughly."""
        return (len(self._idle) + len(self._used) + len(self._expected)) * _ENTRY_BYTES

    def resize(self, room: int) -> None:
        """`room`: of the instance's KV cache; 0 when it is not known, then nothing is expected to be evicted."""
        if room != self._room:
            self._room, self._cutoff = room, None
            self._mask = (1 << max(room.bit_length() - SAMPLES.bit_length() + 1, 0)) - 1
            self._idle = {block: at for block, at in self._idle.items() if not block & self._mask}

    def stirs(self, now: float) -> bool:
        """Something is under way that will change what it holds; `now`: s, monotonic."""
        while self._leaving and self._leaving[0][0] <= now:
            self._forget(self._leaving.popleft()[1])
        return bool(self._expected)

    def foreseen(self, hashes: Sequence[int], held: int) -> int:
        """How many leading blocks of a prompt it will hold when `held` are now."""
        kept = self._kept(hashes, held)
        return max(kept, self._end_of_expected(hashes, kept))

    def sent(self, hashes: Sequence[int], held: int, foreseen: int) -> Sent:
        """The instance gets this prompt, of which it holds so much now and will when its turn comes."""
        expected, used, idle, mask = self._expected, self._used, self._idle, self._mask
        start = foreseen
        while start and hashes[start - 1] in expected:
            start -= 1
        fresh = hashes[start:]
        for block in fresh:
            expected[block] = expected.get(block, 0) + 1
        self._again.update(dict.fromkeys(hashes[foreseen:held]))
        request = Sent(self, fresh, [block for block in reversed(hashes) if not block & mask])
        for block in request.samples:
            used[block] = used.get(block, 0) + 1
            idle.pop(block, None)
        self._under_way += 1
        self._cutoff = None
        return request

    def ended(self, request: Sent, now: float) -> None:
        """Its blocks are free from now on: to be evicted after those of all that ended before."""
        used, lost = self._used, self._lost
        self._under_way -= 1
        free = []
        for block in request.samples:
            used[block] -= 1
            if not used[block]:
                del used[block]
                free.append(block)
        self._free([block for block in free if block not in lost])
        lost.difference_update(free)
        # What was told of is not its own any more: evicted, it may be what the conversation's next turn awaits.
        request.fresh = [block for block in request.fresh if block in self._expected]
        if request.fresh:
            self._leaving.append((now + LATE_S, request))

    # What the engine tells

    def stored(self, blocks: Sequence[int], more: int) -> None:
        """Blocks of a chain; `more` are held than before."""
        self.held += more
        self._cutoff = None
        if self._expected:
            for block in blocks:
                self._expected.pop(block, None)
                self._again.pop(block, None)
        mask = self._mask
        if self._room:
            samples = [block for block in reversed(blocks) if not block & mask]
            self._lost.difference_update(samples)
            self._free([block for block in samples if block not in self._used and block not in self._idle])

    def dropped(self, block: int) -> None:
        self.held -= 1
        self._cutoff = None
        self._again.pop(block, None)
        if block & self._mask or block in self._expected:
            return
        if block in self._used:
            self._lost.add(block)
        else:
            self._idle.pop(block, None)

    # Inside

    def _free(self, samples: Sequence[int]) -> None:
        """Nobody uses them any more; from the end of a chain to its beginning."""
        first, self._next = self._next, self._next + len(samples)
        self._idle.update(zip(samples, range(first, self._next), strict=True))
        self._cutoff = None

    def _forget(self, request: Sent) -> None:
        """What it was to compute and the engine has not told of is not expected any more."""
        for block in request.fresh:
            others = self._expected.get(block)
            if others is None:
                continue
            if others > 1:
                self._expected[block] = others - 1
                continue
            del self._expected[block]
            if self._again.pop(block, self) is self and not block & self._mask:
                self._idle.pop(block, None)
        self._cutoff = None

    def _kept(self, hashes: Sequence[int], held: int) -> int:
        """How many of the leading blocks held now will not be evicted."""
        if self._cutoff is None:
            self._cutoff = self._found_cutoff()
        if not self._cutoff:
            return held
        mask = self._mask
        last = next((place for place in range(held - 1, -1, -1) if not hashes[place] & mask), None)
        if last is None or not self._goes(hashes[last]):
            return held
        places = [place for place in range(last + 1) if not hashes[place] & mask]
        # The end of a chain is never used later than its beginning.
        return places[bisect_left(places, True, key=lambda place: self._goes(hashes[place]))]

    def _goes(self, sample: int) -> bool:
        return sample not in self._used and self._idle.get(sample, 0) < (self._cutoff or 0)

    def _found_cutoff(self) -> int:
        will = self.held + len(self._expected) - len(self._again) + len(self._lost) * (self._mask + 1)
        too_many = will + self._under_way - self._room  # of each request one block is not full, and has no name
        samples = len(self._idle) + len(self._used)
        if not self._room or too_many <= 0 or not samples:
            return 0
        share = min(samples * (self._mask + 1) / will, 1.0)
        if share < ALL_KNOWN:  # what nothing is known of was used before all that something is known of
            too_many -= round(will * (1 - share))
        gone = round(too_many * samples / (will * share))
        return next(islice(self._idle.values(), gone, None), self._next) if gone > 0 else 0

    def _end_of_expected(self, hashes: Sequence[int], start: int) -> int:
        """The first place from `start` on where a block is not expected: steps that double, then bisection."""
        expected, end = self._expected, len(hashes)
        if start >= end or hashes[start] not in expected:
            return start
        low, step = start, 1
        while low + step < end and hashes[low + step] in expected:
            low += step
            step *= 2
        high = min(low + step, end)
        while high - low > 1:
            middle = (low + high) // 2
            if hashes[middle] in expected:
                low = middle
            else:
                high = middle
        return high
