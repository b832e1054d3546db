"""Offloads between processes: a router and engines, one of which is killed under load, like `bench/flows.py`."""

from contextlib import ExitStack

import httpx
import pytest

from bench.flows import World, measure

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("flow", ["trtllm", "neuron", "neuron 1P1D"])
async def test_a_killed_engine_loses_only_streams_that_it_had_begun(flow: str) -> None:
    with ExitStack() as stack:
        world = World(flow, stack)
        async with httpx.AsyncClient(base_url=world.url, timeout=60) as client:
            prefill = await measure(world, client, ("kill -9", "prefill"), 3, 6)
            decode = await measure(world, client, ("kill -9", "decode"), 3, 6)
    assert (prefill.wrong, decode.wrong) == (0, 0)
    assert prefill.lost.keys() <= ({"streams ended by an error"} if world.connector == "neuron" else set())
    assert decode.lost.keys() <= {"streams ended by an error"}
    assert sum(decode.lost.values()) < decode.sent / 2
    moved = [one for one in prefill.receipts if one.get("offload_reason")]
    assert moved
    assert {one["status"] for one in moved} == {200}
    assert len(decode.receipts) == decode.sent
