"""Both requests of an offload carry the engine's key; KV blocks move without it."""

import pytest

from router.tests.flows.conftest import Build


@pytest.mark.parametrize("connector", ["nixl", "mooncake_p2p", "trtllm", "neuron"])
async def test_engines_that_require_a_key_can_offload(
    pair: Build, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-engine-1")  # the engines inherit the key and require it
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


async def test_a_prefill_that_rejects_its_key_is_at_fault_and_the_decoder_serves(
    pair: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-engine-1")
    monkeypatch.setenv("OLD_API_KEY", "sk-engine-0")
    world = await pair("nixl")
    for one, key in zip(world.entries, ("env:OLD_API_KEY", "env:VLLM_API_KEY"), strict=True):
        one["engine_key"] = key
    world.publish()
    await world.until(lambda: all(one.engine_key for one in world.pool.endpoints.values()))
    receipt = await world.receipt(await world.ask())
    assert (receipt["status"], receipt["offload"]) == (200, "fallback")
    assert "answered 401" in receipt["offload_reason"]
    assert world.pool.endpoints["demo-0"].breaker.failures == 1
    await world.nothing_is_left()
