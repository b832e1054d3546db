"""Four data-parallel ranks behind one address hit as often as four addresses: real simulated engines and a router."""

import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.tests.conftest import Published, entry, running
from router.tests.kv_events.conftest import Sim, quick, start_sim
from router.tests.test_exact_index import until

__all__ = ["quick", "start_sim"]
pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.slow]

SESSIONS, TURNS, RANKS = 24, 5, 4
TURN = "sixteen tokens of four bytes each, so one block holds 64 bytes. " * 8  # 128 tokens


async def hit_share(client: httpx.AsyncClient) -> float:
    """Return the cached share of prompt tokens that engines report, over sessions whose turns come in random order."""
    draw = random.Random(7)
    turns = [session for session in range(SESSIONS) for _ in range(TURNS)]
    draw.shuffle(turns)
    prompts: dict[int, str] = {}
    cached = total = 0
    for session in turns:
        prompts[session] = prompts.get(session, f"session {session:03} begins. " * 8) + TURN
        asked = {"model": "llama", "prompt": prompts[session], "max_tokens": 1, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        total += usage["prompt_tokens"]
    return cached / total


async def measured(redis_url: str, published: Published, exact: int, *instances: dict[str, Any]) -> float:
    """Measure the hit share. `exact`: how many endpoints need an exact index before the first request."""
    published.policy(strategy="cache_aware")
    published.fleet(*instances)
    async with running(redis_url) as (router, client):
        pool = router.pools.get("demo")
        assert pool is not None
        await until(lambda: sum(one.belief.index == "exact" for one in pool.endpoints.values()) == exact)
        return await hit_share(client)


async def test_ranks_behind_one_address_hit_as_often_as_four_addresses(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    def one(sim: Sim, name: str = "demo-0", **changes: Any) -> dict[str, Any]:
        return entry(name, sim.url, events=sim.url, tokenizer="sim", **changes)

    def ranked() -> Sim:
        return start_sim(**{"data-parallel-size": RANKS})

    addresses = await measured(
        redis_url, published, RANKS, *(one(start_sim(), f"demo-{number}") for number in range(RANKS))
    )
    ranks = await measured(redis_url, published, RANKS, one(ranked(), dp={"ranks": RANKS}))
    unnamed = await measured(redis_url, published, 0, one(ranked()))
    assert ranks == pytest.approx(addresses, rel=0.05)
    assert 0.1 < unnamed / addresses < 0.5  # the engine chooses a rank, so a session's turns spread over four
