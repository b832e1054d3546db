"""If running requests take space from an engine's prefix cache, corrections by its reports improve predictions."""

import random
from collections import OrderedDict

import pytest

from router.prefix.approximate import PrefixIndex

KV_CHUNKS = 2_000


class Engine:
    """A prefix cache that evicts the least recently used, in the space that running requests leave."""

    def __init__(self) -> None:
        self.held: OrderedDict[int, None] = OrderedDict()

    def serve(self, chain: list[int], busy: float) -> int:
        cached = next((place for place, chunk in enumerate(chain) if chunk not in self.held), len(chain))
        for chunk in reversed(chain):
            self.held[chunk] = None
            self.held.move_to_end(chunk)
        while len(self.held) > KV_CHUNKS * (1 - busy):
            self.held.popitem(last=False)
        return cached


def sessions(rng: random.Random, requests: int) -> list[list[int]]:
    """Conversations that share a system prompt, grow from turn to turn and are replaced by new ones."""
    system = [rng.getrandbits(64) for _ in range(20)]
    alive: list[list[int]] = [list(system) for _ in range(30)]
    prompts = []
    for _ in range(requests):
        if rng.random() < 0.05:
            alive[rng.randrange(30)] = list(system)
        session = rng.choice(alive)
        session += [rng.getrandbits(64) for _ in range(rng.randint(2, 20))]
        prompts.append(list(session))
    return prompts


def mean_error(busy: tuple[float, float], *, heeded: bool) -> float:
    """Return the mean of |predicted − actual| cached chunks."""
    rng = random.Random(7)
    index, engine = PrefixIndex(), Engine()
    index.limit("a", KV_CHUNKS)
    errors = []
    for chain in sessions(rng, 1_500):
        predicted = index.match(chain).get("a", 0)
        index.insert("a", 1, chain)
        actual = engine.serve(chain, rng.uniform(*busy))
        if heeded:
            index.correct("a", chain, actual)
        errors.append(abs(predicted - actual))
    return sum(errors) / len(errors)


@pytest.mark.parametrize("busy", [(0.1, 0.4), (0.4, 0.7)])
def test_errors_are_fewer_when_the_engine_has_less_room_than_its_kv(busy: tuple[float, float]) -> None:
    assert mean_error(busy, heeded=True) < 0.9 * mean_error(busy, heeded=False)


def test_little_is_lost_when_the_engine_has_nearly_all_its_kv_for_the_cache() -> None:
    assert mean_error((0.0, 0.05), heeded=True) < 1.5 * mean_error((0.0, 0.05), heeded=False) + 2
