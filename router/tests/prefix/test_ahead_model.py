"""For an engine that serves a few requests at a time and queues the others, the forecast equals the later hits."""

import random
from collections import deque

import pytest

from router.prefix.blocks import block_hashes
from router.prefix.exact.index import ExactIndex
from router.prefix.forecast.cache_forecast import InFlight

SEED = 3
SIZE = 4
ROOM = 400  # blocks
RUNNING = 2
TURNS = 300


class Waiting:
    def __init__(self, tokens: bytes, sent: InFlight, now: int, foreseen: int) -> None:
        self.tokens = tokens
        self.hashes = block_hashes(tokens, SIZE, SEED)
        self.sent = sent
        self.now = now  # blocks held when the request was sent
        self.foreseen = foreseen
        self.found = -1


class Engine:
    """A cache that keeps running requests' blocks and evicts, of the others, the least recently freed first."""

    def __init__(self, index: ExactIndex) -> None:
        self.index = index
        self.cached: dict[int, int] = {}  # block → requests that use it
        self.idle: dict[int, None] = {}  # least recently used first
        self.waiting: deque[Waiting] = deque()
        self.running: deque[Waiting] = deque()
        index.limit("a", ROOM)

    def step(self, clock: float) -> None:
        """End one request, and begin as many as fit."""
        if self.running:
            self.end(self.running.popleft(), clock)
        while self.waiting and len(self.running) < RUNNING and self.begin(self.waiting[0]):
            self.running.append(self.waiting.popleft())

    def begin(self, request: Waiting) -> bool:
        chain = request.hashes
        found = next((place for place, block in enumerate(chain) if block not in self.cached), len(chain))
        free = ROOM - len(self.cached) + sum(block not in chain[:found] for block in self.idle)
        if len(chain) - found > free:
            return False
        request.found = found
        for block in chain[:found]:
            self.idle.pop(block, None)
            self.cached[block] += 1
        for block in list(self.idle)[: max(len(self.cached) + len(chain) - found - ROOM, 0)]:
            del self.idle[block], self.cached[block]
            self.index.drop("a", [block])
        self.cached.update(dict.fromkeys(chain[found:], 1))
        if found < len(chain):
            parent = chain[found - 1] if found else None
            self.index.store("a", chain[found:], parent, request.tokens[found * SIZE * 4 :], SIZE)
        return True

    def end(self, request: Waiting, clock: float) -> None:
        for block in reversed(request.hashes):
            self.cached[block] -= 1
            if not self.cached[block]:
                self.idle[block] = None
        request.sent.over(clock)


def blocks(index: ExactIndex, chain: list[int], clock: float) -> tuple[int, int]:
    matched = index.match(chain, SIZE)
    forecast = matched | index.foreseen(matched, chain, SIZE, clock)
    return sum(matched.get("a", (0, 0, 0))) // SIZE, sum(forecast.get("a", (0, 0, 0))) // SIZE


def errors(rng: random.Random, sessions: int) -> tuple[float, float]:
    """Return the mean of |blocks hit − blocks held when sent| and of |blocks hit − blocks forecast|."""
    index = ExactIndex(SEED)
    engine = Engine(index)
    system = rng.randbytes(16 * 10)
    talks = [system] * sessions
    under_way: dict[int, Waiting] = {}
    served: list[Waiting] = []
    for clock in range(TURNS):
        turn = rng.randrange(sessions)
        if turn not in under_way:
            talks[turn] = (talks[turn] if len(talks[turn]) < 16 * 120 else system) + rng.randbytes(
                16 * rng.randint(2, 25)
            )
            chain = block_hashes(talks[turn], SIZE, SEED)
            now, foreseen = blocks(index, chain, clock)
            under_way[turn] = Waiting(talks[turn], index.sent("a", chain, foreseen), now, foreseen)
            engine.waiting.append(under_way[turn])
        if rng.random() < 0.6:
            engine.step(clock)
        for name, request in list(under_way.items()):
            if request.found >= 0 and request not in engine.running:
                served.append(under_way.pop(name))
    n = len(served)
    return (
        sum(abs(one.found - one.now) for one in served) / n,
        sum(abs(one.found - one.foreseen) for one in served) / n,
    )


@pytest.mark.parametrize("sessions", [8, 16, 32])
def test_the_forecast_is_much_nearer_to_the_hits_than_the_present_cache_is(sessions: int) -> None:
    now, foreseen = errors(random.Random(sessions), sessions)
    assert foreseen <= now / 4
    assert foreseen < 5


def test_with_room_for_all_requests_the_forecast_is_exact() -> None:
    assert errors(random.Random(1), 2)[1] == 0
