"""Both halves of an offload show their engines the key, and the blocks move without it."""

import pytest

from router.tests.flows.conftest import Build


@pytest.mark.parametrize("connector", ["nixl", "mooncake_p2p", "trtllm", "neuron"])
async def test_engines_that_ask_for_a_key_offload_as_others_do(
    pair: Build, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-engine-1")  # the engines inherit it, and ask for it
    world = await pair(connector, ("prefill", "decode"))
    assert (await world.ask()).status_code == 401
    for one in world.entries:
        one["engine_key"] = "env:VLLM_API_KEY"
    world.publish()
    await world.until(lambda: all(one.engine_key for one in world.pool.endpoints.values()))
    response = await world.ask()
    receipt = await world.receipt(response)
    assert (receipt["status"], receipt["flow"], receipt["offload"]) == (200, f"offload_{connector}", "ok")
    assert world.sims[1].external() > 0
    await world.nothing_is_left()
