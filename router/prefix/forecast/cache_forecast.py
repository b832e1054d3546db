"""What an instance will hold when a request that is sent to it now gets its turn; the exact index says what it holds.

Between the two lie the requests that were sent there before. What they compute will be held, which the engine tells
only once it does so (`expected`). And it takes room, as does what their answers grow until then: with its cache full an
engine evicts for it what no request uses, the one that was used longest ago first and a chain's end before its
beginning (`shelf.py`), so that a prefix which is held now may be gone by then. An engine admits in the order of
arrival, and only once the whole prompt has room; until enough of the others have ended, those that run go on growing.
"""

from array import array
from collections import deque
from collections.abc import Sequence

from router.prefix.common import common
from router.prefix.forecast.admission_forecast import AdmissionForecast
from router.prefix.forecast.eviction_order import EvictionOrder

LATE_S = 1.0  # after a request's end its blocks are told of, or never will be
LEARNT_FROM = 16  # answers: how long they are is their mean, older ones counting less
_ENTRY_BYTES = 110


class Sent:
    """One request under way on one instance."""

    __slots__ = ("_forecast", "_prompt", "chain", "foreseen", "fresh", "has_turn", "own", "uses")

    def __init__(
        self, forecast: "CacheForecast", hashes: Sequence[int], uses: int, foreseen: int, fresh: list[int]
    ) -> None:
        self._forecast = forecast
        self._prompt = len(hashes)
        self.chain = array("Q", hashes)  # of the prompt, and of the answer as it grows
        self.uses = uses  # leading blocks: to be found in its turn, and told of since
        self.foreseen = foreseen  # leading blocks that will be held in its turn; others compute those that are not yet
        self.own = 0  # blocks of the prompt that no other used when it was sent
        self.fresh = fresh  # blocks that were not held when it was sent; once it is over, those still not told of
        self.has_turn = False

    @property
    def missing(self) -> int:
        """Blocks of the prompt that it computes and that are not told of yet."""
        return max(self._prompt - max(self.uses, self.foreseen), 0)

    @property
    def answer(self) -> int:
        """Blocks of it so far."""
        return len(self.chain) - self._prompt

    @property
    def awaits(self) -> int:
        """Its next block; or the one before it, while what that will be is not known."""
        if self.uses < len(self.chain):
            return self.chain[self.uses]
        return self.chain[-1] if self.chain else 0

    def told(self, blocks: Sequence[int]) -> None:
        """Its next blocks are held."""
        self.has_turn = True
        self.uses += len(blocks)
        if self.uses > len(self.chain):
            self.chain.extend(blocks[len(self.chain) - self.uses :])

    def over(self, now: float) -> None:
        """In whatever way; `now`: s, monotonic."""
        self._forecast.ended(self, now)


class CacheForecast:
    """Of one instance; all sizes in blocks, on the device."""

    __slots__ = (
        "_answer",
        "_answers",
        "_eviction",
        "_expected",
        "_leaving",
        "_next",
        "_room",
        "_turns",
        "_under_way",
        "held",
    )

    def __init__(self, room: int) -> None:
        self.held = 0  # now, each copy counted
        self._room = room
        self._eviction = EvictionOrder()
        self._expected: dict[int, int] = {}  # blocks not told of yet → requests that compute or await them
        self._under_way: dict[Sent, None] = {}  # in the order of arrival
        self._next: dict[int, Sent] = {}  # the next block of a prompt, or the last one of a growing answer
        self._leaving: deque[tuple[float, Sent]] = deque()  # those that are over: what they computed may be told yet
        self._answer = 0.0  # mean of those that are over, in blocks
        self._answers = 0  # of how many
        self._turns: AdmissionForecast | None = None  # of those under way; None: to be found

    @property
    def bytes(self) -> int:
        """Memory, roughly."""
        return self._eviction.bytes + len(self._expected) * _ENTRY_BYTES

    def resize(self, room: int) -> None:
        """`room`: of the instance's KV cache; 0 when it is not known, then nothing is expected to be evicted."""
        self._room, self._turns = room, None

    def stirs(self, now: float) -> bool:
        """Something is under way that will change what it holds; `now`: s, monotonic."""
        while self._leaving and self._leaving[0][0] <= now:
            self._forget(self._leaving.popleft()[1])
        return bool(self._under_way or self._expected)

    def foreseen(self, hashes: Sequence[int], held: int) -> int:
        """How many leading blocks of a prompt it will hold when `held` are now."""
        kept = held
        if held and self._room and not self._eviction.uses(hashes, held):
            kept = self._kept(hashes, held)
        return self._end_of_expected(hashes, kept)

    def sent(self, hashes: Sequence[int], foreseen: int) -> Sent:
        """The instance gets this prompt, of which it will hold so many leading blocks when its turn comes."""
        expected = self._expected
        start = foreseen
        while start and hashes[start - 1] in expected:
            start -= 1
        fresh = list(hashes[start:])
        for block in fresh:
            expected[block] = expected.get(block, 0) + 1
        idle = self._eviction.idle
        request = Sent(self, hashes, start, foreseen, fresh)
        self._eviction.use(request.chain, start, busy=True)
        request.own = idle - self._eviction.idle + len(hashes) - foreseen
        self._under_way[request] = None
        self._next[request.awaits] = request
        self._turns = None
        return request

    def ended(self, request: Sent, now: float) -> None:
        """Its blocks are free from now on: to be evicted after those of all that ended before."""
        if self._under_way.pop(request, self) is self:
            return
        self._turns = None
        if self._next.get(request.awaits) is request:
            del self._next[request.awaits]
        if request.has_turn:
            self._answers += 1
            self._answer += (request.answer - self._answer) / min(self._answers, LEARNT_FROM)
        self._eviction.use(request.chain, request.uses, busy=False)
        self._keep_shared(request)
        # What was told of is not its own any more: evicted, it may be what the conversation's next turn awaits.
        request.fresh = [block for block in request.fresh if block in self._expected]
        if request.fresh:
            self._leaving.append((now + LATE_S, request))

    # What the engine tells

    def stored(self, blocks: Sequence[int], parent: int, new: int, copies: int) -> None:
        """Blocks of a chain that goes on from `parent`, of which the last ones were not held before."""
        self.held += new + copies
        self._turns = None
        if not self._expected.keys().isdisjoint(blocks):
            for block in blocks:
                self._expected.pop(block, None)
        if not new:
            return
        request = self._next.get(blocks[0]) or self._answering(parent) or self._hit_otherwise(blocks[0])
        known = len(blocks) - new
        self._eviction.told(blocks[known:], blocks[known - 1] if known else parent, busy=request is not None)
        if request is not None:
            self._next.pop(request.awaits, None)
            request.told(blocks)
            self._next[request.awaits] = request

    def dropped(self, blocks: Sequence[int]) -> None:
        """In the order of eviction."""
        self.held -= len(blocks)
        self._turns = None
        for block in self._eviction.gone(blocks):
            self._lose(block)
        self._eviction.fit(self.held)

    # Inside

    def _answering(self, parent: int) -> Sent | None:
        """The request whose answer goes on from this block."""
        request = self._next.get(parent)
        return request if request is not None and request.uses == len(request.chain) else None

    def _hit_otherwise(self, block: int) -> Sent | None:
        """A request that found more or less than was foreseen, and computes from this block on."""
        for request in self._under_way:
            if not request.has_turn and block in request.chain:
                place = request.chain.index(block)
                if self._next.get(request.awaits) is request:
                    del self._next[request.awaits]
                for found in request.chain[request.uses : place]:
                    self._expected.pop(found, None)
                request.uses = place
                self._eviction.use(request.chain, place, busy=True)
                return request
        return None

    def _lose(self, block: int) -> None:
        """A request that has not had its turn will find less than was foreseen, and compute this once more."""
        for request in self._under_way:
            if not request.has_turn and request.uses and request.chain[request.uses - 1] == block:
                if self._next.get(request.awaits) is request:
                    del self._next[request.awaits]
                request.uses = request.foreseen = request.uses - 1
                request.fresh.append(block)
                self._next[block] = request
                self._expected[block] = self._expected.get(block, 0) + 1

    def _keep_shared(self, request: Sent) -> None:
        """What the one under way that has the longest beginning in common with it uses yet."""
        first = request.chain[0] if request.uses else None
        most, sharer = 0, None
        for other in self._under_way:
            if other.uses and other.chain[0] == first:
                same = common(other.chain, request.chain, 0, min(other.uses, request.uses))
                if same > most:
                    most, sharer = same, other
        if sharer is not None:
            self._eviction.use(sharer.chain, sharer.uses, busy=True)

    def _forget(self, request: Sent) -> None:
        """What it was to compute and the engine has not told of is not expected any more."""
        for block in request.fresh:
            others = self._expected.pop(block, 0)
            if others > 1:
                self._expected[block] = others - 1
        self._turns = None

    def _kept(self, hashes: Sequence[int], held: int) -> int:
        """How many of the leading blocks held now will not be evicted."""
        if self._turns is None:
            self._turns = self._found_turns()
        kept = self._left(hashes, held, self._turns)
        need = len(hashes) - kept + 1
        if self._turns.free >= need:
            return kept
        turns = self._turns.copy()
        turns.wait(need)
        return self._left(hashes, held, turns)

    def _left(self, hashes: Sequence[int], held: int, turns: AdmissionForecast) -> int:
        gone = round(turns.evicted)
        return self._eviction.kept(hashes, held, self._eviction.cutoff(gone)) if gone else held

    def _found_turns(self) -> AdmissionForecast:
        """When all that are under way have had theirs. Each has one block besides that is not full, without a name."""
        running = sum(request.has_turn for request in self._under_way)
        blank = self._room - self.held - running - sum(len(request.fresh) for _, request in self._leaving)
        turns = AdmissionForecast(blank + self._eviction.idle, blank)
        for request in self._under_way:
            need = request.missing + (not request.has_turn)
            if not request.has_turn:
                turns.wait(need)
            turns.run(need, max(self._answer - request.answer, 0.0), request.own + request.answer)
        return turns

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
