"""Prefill on one engine and decode on another, through a store that both share."""

from collections.abc import Callable
from typing import Any

import pytest

from router.tests.flows.conftest import Build, Sim
from router.tests.forked import STORE


@pytest.mark.slow
async def test_the_decoder_finds_the_prefills_blocks_in_the_shared_store(pair: Build, sims: Callable[..., Any]) -> None:
    store: Sim = sims("store", module=STORE)
    world = await pair("mooncake_store", flags={"kv_store": store.url})
    response = await world.ask()
    assert response.status_code == 200
    receipt = await world.receipt(response)
    assert (receipt["flow"], receipt["instance"]) == ("offload_mooncake_store", "demo-1")
    assert receipt["prefill_instance"] == "demo-0"
    assert [sim.figure("request_success_total") for sim in world.sims] == [1, 1]
    await world.nothing_is_left()


async def test_the_decoder_computes_the_prompt_of_a_dead_prefill_instance(
    pair: Build, sims: Callable[..., Any]
) -> None:
    store: Sim = sims("store", module=STORE)
    world = await pair("mooncake_store", flags={"kv_store": store.url})
    world.sims[0].stop()
    receipt = await world.receipt(await world.ask())
    assert (receipt["status"], receipt["flow"], receipt["offload"]) == (200, "colocated", "fallback")
    await world.nothing_is_left()
