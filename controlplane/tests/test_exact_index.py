"""Given an engine's events, the router's exact index equals the engine's own prefix cache."""

import random

import pytest

from fleet.engine.blocks import Cleared, Removed, Stored
from fleet.engine.engine import Engine
from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits
from fleet.simengine import generation
from router.prefix.blocks import block_hashes
from router.prefix.exact.index import ExactIndex

SIZE = 4  # tokens in a block
WIDTH = SIZE * generation.BYTES_PER_TOKEN
SEED = 5
SESSIONS = 8


class Load:
    """Random requests with shared prefixes on an engine whose cache is too small, causing evictions, preemptions and
    aborts."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.engine = Engine(law_of(profile()), 60, Limits(SIZE, 64, 64), record_events=True)
        self.index = ExactIndex(SEED)
        self.texts = [self.draw.randbytes(40 * WIDTH) for _ in range(SESSIONS)]
        self.live: list[str] = []
        self.sent = 0

    def step(self) -> None:
        draw = self.draw
        if draw.random() < 0.5 and len(self.live) < 6:
            self._send()
        done = self.engine.step()
        ended = {request.id for request in done.finished} if done is not None else set()
        self.live = [name for name in self.live if name not in ended]
        if self.live and draw.random() < 0.03:
            self.engine.abort(self.live.pop(draw.randrange(len(self.live))))
        if draw.random() < 0.002:
            self.engine.reset_cache()
        for event in self.engine.pool.take_events():
            self._tell(event)

    def _send(self) -> None:
        draw = self.draw
        prompt = draw.choice(self.texts)[: draw.randrange(5, 40) * WIDTH] + draw.randbytes(4 * draw.randrange(10))
        answer = draw.randrange(1, 20)
        data = prompt + draw.randbytes(4 * answer)
        chain = generation.chain(data, SIZE)
        self.sent += 1
        self.engine.add_request(
            EngineRequest(str(self.sent), len(prompt) // 4, answer, chain, content=data), self.engine.clock_s
        )
        self.live.append(str(self.sent))

    def _tell(self, event: Stored | Removed | Cleared) -> None:
        if isinstance(event, Stored):
            assert isinstance(event.content, bytes)
            held = event.content[event.first * WIDTH : (event.first + len(event.hashes)) * WIDTH]
            self.index.store("a", event.hashes, event.parent, held, SIZE)
        elif isinstance(event, Removed):
            self.index.drop("a", event.hashes)
        else:
            self.index.clear("a")
            self.index.sweep(1_000)


@pytest.mark.parametrize("seed", range(3))
def test_both_hold_the_same_blocks_at_any_moment(seed: int) -> None:
    load = Load(seed)
    for _ in range(1_000):
        load.step()
        for text in load.texts:
            chain = generation.chain(text, SIZE)
            held = load.index.match(block_hashes(text, SIZE, SEED), SIZE).get("a", (0, 0, 0))
            assert sum(held) == len(load.engine.pool.hit(chain, len(chain))) * SIZE
    assert load.index.unknown("a") == 0
