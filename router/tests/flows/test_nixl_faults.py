"""If one half of an offload fails, another engine answers once, and nothing is left behind."""

import asyncio
import os
import signal
from typing import Any

import pytest

from router.tests.flows.conftest import PROMPT, Build, Pair

pytestmark = pytest.mark.slow

LONG = "a longer prompt " * 5000  # 20,000 tokens: one or two seconds of prefill at the engine's own speed


async def begun(world: Pair, **body: Any) -> "asyncio.Task[Any]":
    """Start a request and wait until its prefill has begun."""
    task = asyncio.ensure_future(world.ask(LONG, **body))
    await world.until(lambda: world.pool.endpoints["demo-0"].requests == 1)
    return task


@pytest.mark.parametrize("stream", [True, False])
async def test_when_the_prefill_instance_is_dead_the_decoder_computes_the_prompt(pair: Build, stream: bool) -> None:
    world = await pair("nixl")
    world.sims[0].stop()
    response = await world.ask(stream=stream)
    receipt = await world.receipt(response)
    assert response.status_code == 200
    assert (response.headers["x-weir-flow"], receipt["instance"]) == ("colocated", "demo-1")
    assert (receipt["offload"], receipt["retries"]) == ("fallback", 0)
    assert receipt["offload_reason"].startswith("demo-0: no connection to")
    assert world.counted() == {("demo", "nixl", "fallback"): 1}
    await world.nothing_is_left()


async def test_a_policy_can_require_an_error_instead_of_a_fallback(pair: Build) -> None:
    world = await pair("nixl", failure__offload_fallback="fail")
    world.sims[0].stop()
    response = await world.ask()
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "prefill_failed"
    assert world.sims[1].figure("request_success_total") == 0
    assert world.counted() == {("demo", "nixl", "failed"): 1}
    await world.nothing_is_left()


async def test_a_dead_prefill_instance_opens_its_own_breaker(pair: Build) -> None:
    world = await pair("nixl", failure__breaker_failures=1)
    world.sims[0].stop()
    await world.ask()
    endpoints = world.pool.endpoints
    assert (endpoints["demo-0"].breaker.state, endpoints["demo-1"].breaker.state) == ("open", "closed")
    receipt = await world.receipt(await world.ask("again " + PROMPT))
    assert "prefill_instance" not in receipt  # the breaker is open, so the policy omits the instance


@pytest.mark.parametrize(("fallback", "status"), [("local", 200), ("fail", 504)])
async def test_a_prefill_that_takes_too_long_is_abandoned(pair: Build, fallback: str, status: int) -> None:
    world = await pair("nixl", failure__offload_fallback=fallback, failure__prefill_timeout_s=0.3)
    world.sims[0].suspend()
    response = await world.ask()
    assert response.status_code == status
    receipt = await world.receipt(response)
    assert receipt["offload_reason"] == "demo-0 did not compute the prompt within 0.3 s"
    assert receipt["offload"] == ("fallback" if fallback == "local" else "failed")
    os.kill(world.sims[0].process.pid, signal.SIGCONT)
    await world.nothing_is_left()


async def test_a_prefill_instance_killed_during_a_request_is_replaced_by_the_decoder(pair: Build) -> None:
    world = await pair("nixl", flags={"time_scale": 1})
    asking = await begun(world, max_tokens=2)
    world.sims[0].stop()
    receipt = await world.receipt(await asking)
    assert (receipt["offload"], receipt["status"]) == ("fallback", 200)
    await world.nothing_is_left()


async def test_an_error_of_the_prefill_is_recorded_and_the_request_served_elsewhere(pair: Build) -> None:
    world = await pair("nixl")
    world.entries[0]["url"] = world.sims[0].url + "/nowhere"
    world.publish()
    answer = await world.ask(model=None, prompt="x" * 600_000)  # longer than the context window
    assert answer.status_code == 400
    assert "maximum context length" in answer.text


async def test_when_the_decoder_is_dead_another_one_gets_the_blocks(pair: Build) -> None:
    world = await pair("nixl", roles=("prefill", "decode", "decode"))
    world.sims[1].stop()
    receipts: list[dict[str, Any]] = []
    while not any(receipt["retries"] for receipt in receipts):  # the router draws one of two equal decoders
        assert len(receipts) < 50
        receipts.append(await world.receipt(await world.ask(f"{len(receipts)} " + PROMPT)))
    assert {receipt["status"] for receipt in receipts} == {200}
    assert {receipt["instance"] for receipt in receipts} == {"demo-2"}
    assert {receipt["flow"] for receipt in receipts} == {"offload_nixl"}
    assert world.sims[0].figure("request_success_total") == len(receipts)  # no prompt was computed twice
    await world.nothing_is_left()


@pytest.mark.parametrize("stream", [True, False])
async def test_kv_that_does_not_arrive_is_computed_by_the_decoder(pair: Build, stream: bool) -> None:
    world = await pair("nixl", flags={"kv_hold_s": 0.01})  # freed before the decoder can fetch it
    response = await world.ask(stream=stream)
    assert response.status_code == 200
    receipt = await world.receipt(response)
    assert (receipt["flow"], receipt["offload"], receipt["retries"]) == ("colocated", "fallback", 0)
    assert "demo-1 did not get the KV of demo-0" in receipt["offload_reason"]
    assert "KV load failed" in receipt["offload_reason"]
    assert world.pool.endpoints["demo-1"].breaker.state == "closed"
    await world.nothing_is_left()


async def test_a_decoder_that_dies_while_it_waits_for_kv_is_retried_with_a_new_prefill(pair: Build) -> None:
    world = await pair("nixl", roles=("prefill", "decode", "decode"), flags={"kv_setup_ms": 600_000})  # six seconds
    asking = asyncio.ensure_future(world.ask())
    await world.until(lambda: sum(sim.figure("external_prefix_cache_queries_total") for sim in world.sims[1:]))
    first = next(sim for sim in world.sims[1:] if sim.figure("external_prefix_cache_queries_total"))
    first.stop()
    receipt = await world.receipt(await asking)
    assert (receipt["status"], receipt["retries"]) == (200, 1)
    assert receipt["flow"] == "offload_nixl"
    await world.nothing_is_left()


async def test_a_client_that_leaves_during_the_prefill_ends_it(pair: Build) -> None:
    world = await pair("nixl", flags={"time_scale": 1})
    asking = await begun(world)
    asking.cancel()
    await world.nothing_is_left()
    assert [sim.figure("num_requests_running") for sim in world.sims] == [0, 0]
    await world.until(lambda: world.counted() == {("demo", "nixl", "cancelled"): 1})


async def test_a_client_that_leaves_during_the_transfer_ends_both_halves(pair: Build) -> None:
    world = await pair("nixl", flags={"kv_setup_ms": 100_000})
    asking = asyncio.ensure_future(world.ask(max_tokens=5000))
    await world.until(lambda: world.sims[1].figure("external_prefix_cache_queries_total"))
    asking.cancel()
    await world.nothing_is_left()


async def test_a_client_that_leaves_during_the_answer_ends_the_decoding(pair: Build) -> None:
    world = await pair("nixl", flags={"time_scale": 1})
    body = {"model": "llama", "prompt": PROMPT, "max_tokens": 5000, "ignore_eos": True, "stream": True}
    async with world.client.stream("POST", "/v1/completions", json=body) as stream:
        async for _ in stream.aiter_bytes():
            break
    await world.nothing_is_left()
    assert world.sims[1].figure("request_success_total") == 1  # aborted


async def test_many_failed_offloads_leave_nothing_behind(pair: Build) -> None:
    world = await pair("nixl", failure__breaker_failures=1000)
    await world.ask()
    before = len(os.listdir("/proc/self/fd"))
    world.sims[0].stop()
    for _ in range(5):
        answers = await asyncio.gather(*(world.ask(f"{turn} " + PROMPT, max_tokens=1) for turn in range(20)))
        assert {answer.status_code for answer in answers} == {200}
    await world.nothing_is_left()
    await world.client.aclose()
    for endpoint in world.pool.endpoints.values():
        endpoint.upstream.close_idle(float("inf"))
    await world.until(lambda: len(os.listdir("/proc/self/fd")) <= before)
