"""Forecast of the blocks that an instance will hold when it admits a request sent now. The exact index has the blocks
that it holds now; the difference is due to requests sent there before. The blocks that these compute will be held by
then, although the engine reports them only later (`expected`). They also take capacity, as do their growing answers: an
engine with a full cache evicts blocks that no request uses, the least recently used first and a chain's end before its
beginning (eviction_order.py). A prefix that is held now may be gone by then. An engine admits requests in the order of
arrival, and only once the whole prompt fits; until enough other requests have ended, the running ones grow.
"""

from array import array
from collections import deque
from collections.abc import Sequence

from router.prefix.common import common
from router.prefix.forecast.eviction_order import EvictionOrder

LATE_S = 1.0  # time after a request's end after which its blocks are no longer expected to be reported
LEARNT_FROM = 16  # number of answers from which the mean of their length becomes a moving mean
_ENTRY_BYTES = 110


# Forecast of when an instance with a full KV cache admits requests, and of how much it evicts before. Requests are
# admitted in the order of arrival, once the whole prompt fits beside the running requests (vLLM V1 with
# `scheduler_reserve_full_isl`, its default). Until then the running requests grow, all at the same rate, and return
# their blocks when they end, the shortest remainder first. Returned blocks can still be hit, except each request's
# partial block: such blank blocks are reused before anything is evicted.


class AdmissionForecast:
    """A forecast in blocks; expected values are fractions."""

    __slots__ = ("_blank", "_running", "evicted", "free")

    def __init__(self, free: float, blank: float) -> None:
        """`free` is the number of blocks that no running request uses; `blank` is the number of those without
        content."""
        self.free = free
        self.evicted = 0.0
        self._blank = blank
        self._running: list[tuple[float, float]] = []  # (remaining growth of the answer, blocks returned at its end)

    def copy(self) -> "AdmissionForecast":
        other = AdmissionForecast(self.free, self._blank)
        other.evicted, other._running = self.evicted, self._running[:]
        return other

    def run(self, need: float, left: float, own: float) -> None:
        """Start a request: it takes `need` blocks now, its answer grows by `left`, and its end returns `own` and that
        growth."""
        self._take(need)
        self._running.append((left, own))

    def wait(self, need: float) -> None:
        """Wait until `need` blocks are free, or until nothing runs."""
        while self.free < need and self._running:
            first, own = min(self._running)
            self._take(first * len(self._running))
            self._running.remove((first, own))
            self._running = [(left - first, own + first) for left, own in self._running]
            self.free += own + first + 1
            self._blank += 1

    def _take(self, blocks: float) -> None:
        self.free -= blocks
        self._blank -= blocks
        if self._blank < 0:
            self.evicted -= self._blank
            self._blank = 0.0


class Heads(dict[int, dict[int, int]]):
    """Requests in flight or recently ended, by the first block of their prompt and the slot of their instance. `busy`
    has the bits of these slots, and of some that have not been looked up since.
    """

    busy = 0


class InFlight:
    """A request in flight on an instance."""

    __slots__ = ("_forecast", "_prompt", "by_rule", "chain", "foreseen", "fresh", "is_admitted", "own", "uses")

    def __init__(
        self, forecast: "CacheForecast", hashes: Sequence[int], uses: int, foreseen: int, fresh: list[int]
    ) -> None:
        self._forecast = forecast
        self._prompt = len(hashes)
        self.chain = array("Q", hashes)  # chain of the prompt and of the growing answer
        self.uses = uses  # leading blocks found cached at admission or reported since
        self.foreseen = foreseen  # leading blocks expected at admission; earlier requests compute the missing ones
        self.by_rule: Sequence[int] = ()  # the instance's tokens by each rule of speculation, if requested
        self.own = 0  # prompt blocks that no other request used at the time of sending
        self.fresh = fresh  # blocks not held at the time of sending; after the request's end, blocks not reported
        self.is_admitted = False

    @property
    def head(self) -> int:
        """Return the first block."""
        return self.chain[0] if self._prompt else 0

    @property
    def missing(self) -> int:
        """Return the prompt's blocks that it computes and the engine has not reported."""
        return max(self._prompt - max(self.uses, self.foreseen), 0)

    @property
    def answer(self) -> int:
        """Count the blocks of the answer so far."""
        return len(self.chain) - self._prompt

    @property
    def awaits(self) -> int:
        """Return the request's next block; if that is unknown, the last known block."""
        if self.uses < len(self.chain):
            return self.chain[self.uses]
        return self.chain[-1] if self.chain else 0

    def stored(self, blocks: Sequence[int]) -> None:
        """Note that the next blocks of the request are held."""
        self.is_admitted = True
        self.uses += len(blocks)
        if self.uses > len(self.chain):
            self.chain.extend(blocks[len(self.chain) - self.uses :])

    def over(self, now: float) -> None:
        """Note the end of the request. `now` is in s, monotonic."""
        self._forecast.ended(self, now)


class CacheForecast:
    """The forecast for one instance; all sizes are in blocks on the device."""

    def __init__(self, capacity: int, slot: int, heads: Heads) -> None:
        """`heads` is shared by the forecasts for all instances."""
        self.held = 0  # blocks held now, counting copies
        self._capacity = capacity
        self._slot = slot
        self._heads = heads
        self._eviction = EvictionOrder()
        self._expected: dict[int, int] = {}  # blocks not reported yet → requests that compute or await them
        self._under_way: dict[InFlight, None] = {}  # requests in order of arrival
        self._next: dict[int, InFlight] = {}  # by the prompt's next block, or by the last block of a growing answer
        self._leaving: deque[tuple[float, InFlight]] = deque()  # ended requests whose last blocks may still be reported
        self._answer = 0.0  # mean length of ended answers, in blocks
        self._answers = 0  # number of ended answers
        self._admissions: AdmissionForecast | None = None  # forecast for requests in flight; None until computed

    @property
    def bytes(self) -> int:
        """Estimate the memory."""
        return self._eviction.bytes + len(self._expected) * _ENTRY_BYTES

    def resize(self, capacity: int) -> None:
        """Set the capacity of the KV cache; if it is 0 (unknown), no evictions are expected."""
        self._capacity, self._admissions = capacity, None

    def close(self) -> None:
        """Close the forecast, because the instance no longer holds anything; ends of its requests are ignored."""
        for request in (*self._under_way, *(request for _, request in self._leaving)):
            self._unlist(request)
        self._under_way.clear()
        self._leaving.clear()
        self._heads.busy &= ~(1 << self._slot)

    def foreseen(self, hashes: Sequence[int], held: int, now: float) -> int:
        """Predict how many leading blocks of a prompt the instance will hold; it holds `held` now. `now`: s,
        monotonic."""
        if self._leaving:
            self._forget_late(now)
        if not (self._under_way or self._expected):
            if not self._leaving:
                self._heads.busy &= ~(1 << self._slot)
            return held
        kept = held
        if held and self._capacity and not self._eviction.uses(hashes, held):
            kept = self._kept(hashes, held)
        return self._end_of_expected(hashes, kept) if self._expected else kept

    def sent(self, hashes: Sequence[int], foreseen: int) -> InFlight:
        """Note a prompt sent to the instance, where `foreseen` leading blocks are expected to be cached at
        admission."""
        self._heads.busy |= 1 << self._slot
        expected = self._expected
        start = foreseen
        while start and hashes[start - 1] in expected:
            start -= 1
        fresh = list(hashes[start:])
        for block in fresh:
            expected[block] = expected.get(block, 0) + 1
        idle = self._eviction.idle
        request = InFlight(self, hashes, start, foreseen, fresh)
        self._eviction.use(request.chain, start, busy=True)
        request.own = idle - self._eviction.idle + len(hashes) - foreseen
        self._under_way[request] = None
        self._next[request.awaits] = request
        self._admissions = None
        if hashes:
            slots = self._heads.setdefault(hashes[0], {})
            slots[self._slot] = slots.get(self._slot, 0) + 1
        return request

    def ended(self, request: InFlight, now: float) -> None:
        """Free the blocks of an ended request: they are evicted after those of requests that ended earlier."""
        if self._under_way.pop(request, self) is self:
            return
        self._admissions = None
        if self._next.get(request.awaits) is request:
            del self._next[request.awaits]
        if request.is_admitted:
            self._answers += 1
            self._answer += (request.answer - self._answer) / min(self._answers, LEARNT_FROM)
        self._eviction.use(request.chain, request.uses, busy=False)
        self._keep_shared(request)
        # Reported blocks are shared: once they are evicted, the conversation's next request may compute them again.
        request.fresh = [block for block in request.fresh if block in self._expected]
        if request.fresh:
            self._leaving.append((now + LATE_S, request))
        else:
            self._unlist(request)
        self._forget_late(now)

    # From KV events

    def stored(self, blocks: Sequence[int], parent: int, new: int, copies: int) -> None:
        """Add stored blocks of a chain that follow `parent`; the last `new` of them were not held before."""
        self.held += new + copies
        self._admissions = None
        if not self._expected.keys().isdisjoint(blocks):
            for block in blocks:
                self._expected.pop(block, None)
        if not new:
            return
        request = self._next.get(blocks[0]) or self._answering(parent) or self._hit_otherwise(blocks[0])
        known = len(blocks) - new
        self._eviction.stored(blocks[known:], blocks[known - 1] if known else parent, busy=request is not None)
        if request is not None:
            self._next.pop(request.awaits, None)
            request.stored(blocks)
            self._next[request.awaits] = request

    def dropped(self, blocks: Sequence[int]) -> None:
        """Remove evicted blocks, in this order."""
        self.held -= len(blocks)
        self._admissions = None
        for block in self._eviction.gone(blocks):
            self._lose(block)
        self._eviction.fit(self.held)

    def _answering(self, parent: int) -> InFlight | None:
        """Return the request whose answer continues from this block."""
        request = self._next.get(parent)
        return request if request is not None and request.uses == len(request.chain) else None

    def _hit_otherwise(self, block: int) -> InFlight | None:
        """Return a request that had more or fewer cached blocks than foreseen and computes from this block onwards."""
        for request in self._under_way:
            if not request.is_admitted and block in request.chain:
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
        """Lower the expected cached blocks of waiting requests, which must compute this block again."""
        for request in self._under_way:
            if not request.is_admitted and request.uses and request.chain[request.uses - 1] == block:
                if self._next.get(request.awaits) is request:
                    del self._next[request.awaits]
                request.uses = request.foreseen = request.uses - 1
                request.fresh.append(block)
                self._next[block] = request
                self._expected[block] = self._expected.get(block, 0) + 1

    def _keep_shared(self, request: InFlight) -> None:
        """Keep the blocks still used by the request in flight that has the longest common beginning."""
        first = request.chain[0] if request.uses else None
        most, sharer = 0, None
        for other in self._under_way:
            if other.uses and other.chain[0] == first:
                same = common(other.chain, request.chain, 0, min(other.uses, request.uses))
                if same > most:
                    most, sharer = same, other
        if sharer is not None:
            self._eviction.use(sharer.chain, sharer.uses, busy=True)

    def _forget_late(self, now: float) -> None:
        while self._leaving and self._leaving[0][0] <= now:
            self._forget(self._leaving.popleft()[1])

    def _unlist(self, request: InFlight) -> None:
        """Remove a request from which no further blocks are expected."""
        slots = self._heads.get(request.head)
        if slots is None:  # empty prompt
            return
        slots[self._slot] -= 1
        if not slots[self._slot]:
            del slots[self._slot]
            if not slots:
                del self._heads[request.head]

    def _forget(self, request: InFlight) -> None:
        """Stop expecting the request's unreported blocks."""
        self._unlist(request)
        for block in request.fresh:
            others = self._expected.pop(block, 0)
            if others > 1:
                self._expected[block] = others - 1
        self._admissions = None

    def _kept(self, hashes: Sequence[int], held: int) -> int:
        """Count the leading blocks that are held now and will not be evicted."""
        if self._admissions is None:
            self._admissions = self._forecast_admissions()
        kept = self._left(hashes, held, self._admissions)
        need = len(hashes) - kept + 1
        if self._admissions.free >= need:
            return kept
        admissions = self._admissions.copy()
        admissions.wait(need)
        return self._left(hashes, held, admissions)

    def _left(self, hashes: Sequence[int], held: int, admissions: AdmissionForecast) -> int:
        gone = round(admissions.evicted)
        return self._eviction.kept(hashes, held, self._eviction.cutoff(gone)) if gone else held

    def _forecast_admissions(self) -> AdmissionForecast:
        """Forecast the state after the admission of all requests in flight, each with one partial block."""
        running = sum(request.is_admitted for request in self._under_way)
        blank = self._capacity - self.held - running - sum(len(request.fresh) for _, request in self._leaving)
        admissions = AdmissionForecast(blank + self._eviction.idle, blank)
        for request in self._under_way:
            need = request.missing + (not request.is_admitted)
            if not request.is_admitted:
                admissions.wait(need)
            admissions.run(need, max(self._answer - request.answer, 0.0), request.own + request.answer)
        return admissions

    def _end_of_expected(self, hashes: Sequence[int], start: int) -> int:
        """Return the first position from `start` on whose block is not expected, by doubling steps and bisection."""
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
