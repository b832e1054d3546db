"""State that a router following KV events itself keeps between its steps."""

from types import SimpleNamespace
from typing import Any

import pytest

from router.kv_events.listener import Listener, judge
from router.pool.pool import Pool
from router.prefix.blocks import block_hashes
from router.prefix.exact.index import HOST
from router.tests.conftest import fleet, instance

SIZE = 16


def pool_of(count: int) -> Pool:
    pool = Pool("demo")
    pool.take_fleet(
        fleet(*(instance(f"demo-{n}", f"http://127.0.0.1:{n + 1}", events="tcp://127.0.0.1:1") for n in range(count)))
    )
    return pool


async def test_a_pools_store_is_kept_until_the_model_changes() -> None:
    pool, listener, tokens = pool_of(1), Listener(), bytes(4 * SIZE * 8)
    try:
        await listener.step([pool])
        index = pool.kv_event_state.index
        assert index is not None
        index.share("other", list(range(1, 9)), None, tokens, SIZE, HOST)
        hashes = block_hashes(tokens, SIZE, index.seed)
        await listener.step([pool])
        assert index.match(hashes, SIZE) == {"other": (0, 128, 0)}
        pool.endpoints["demo-0"].tokenizer = "/models/other"
        await listener.step([pool])
        assert index.match(hashes, SIZE) == {}
    finally:
        await listener.close()


@pytest.mark.parametrize(
    ("told", "ahead"),
    [
        ([], 0),
        ([(1, 16, "ready")], 1),
        ([(0, 16, "ready"), (0, 16, "ready"), (1, 16, "ready")], 0),
        ([(0, 16, "ready"), (1, 16, "ready"), (1, 16, "ready")], 1),
        ([(1, 16, "ready"), (0, 16, "ready")], 0),
        ([(0, 0, "ready"), (0, 0, "ready"), (1, 16, "ready")], 1),  # no block yet
        ([(0, 16, "ready"), (1, 16, "stopped"), (1, 16, "failed")], 0),
    ],
)
def test_prompts_are_hashed_in_the_way_that_most_instances_name_their_blocks(
    told: list[tuple[int, int, str]], ahead: int
) -> None:
    pool = pool_of(len(told))
    for endpoint, (covered, size, state) in zip(pool.endpoints.values(), told, strict=True):
        endpoint.state = state
        known: Any = {"trouble": "", "complete": True, "names_layers": True, "but_for": "", "unit": 0}
        feed: Any = SimpleNamespace(ahead=covered, block_size=size, parts=(), **known)
        endpoint.feed = feed
    judge(pool)
    assert pool.kv_event_state.ahead == ahead
