"""Prefill on one engine and decode on another, with NIXL's parameters."""

import asyncio

import httpx
import pytest

from router.policy.types import Rates
from router.tests.flows.conftest import PER_TOKEN, PROMPT, Build, Sim


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


async def alone(sim: Sim, prompt: str = PROMPT) -> str:
    """Return the answer of a single engine, for comparison."""
    body = {"prompt": prompt, "max_tokens": 20, "ignore_eos": True}
    async with httpx.AsyncClient() as client:
        return text(await client.post(sim.url + "/v1/completions", json=body))


async def test_the_prompt_is_computed_on_one_engine_and_decoded_on_the_other(pair: Build) -> None:
    world = await pair("nixl")
    response = await world.ask()
    assert response.headers["x-weir-flow"] == "offload_nixl"
    assert response.headers["x-weir-instance"] == "demo-1"
    assert world.sims[1].external() == 1999
    await world.nothing_is_left()
    assert text(response) == await alone(world.sims[0])


async def test_the_receipt_has_instances_and_times(pair: Build) -> None:
    world = await pair("nixl")
    receipt = await world.receipt(await world.ask(stream=True))
    assert (receipt["flow"], receipt["instance"], receipt["prefill_instance"]) == ("offload_nixl", "demo-1", "demo-0")
    assert (receipt["offload"], receipt["offload_reason"]) == ("ok", "")
    assert receipt["prefill_ms"] > 0
    assert 0 < receipt["transfer_ms"] < receipt["e2e_ms"] - receipt["prefill_ms"]
    assert receipt["transfer_bytes"] == receipt["prompt_tokens"] * PER_TOKEN
    assert receipt["cached_tokens"] == 0  # the prefill's count; the decoder's is 1,999
    assert world.counted() == {("demo", "nixl", "ok"): 1}


async def test_an_answer_that_is_not_streamed_has_no_transfer_time(pair: Build) -> None:
    """The first byte arrives after the last token has been generated."""
    world = await pair("nixl")
    receipt = await world.receipt(await world.ask())
    assert (receipt["offload"], receipt["transfer_ms"]) == ("ok", None)
    assert world.pool.rates.transfer_bytes_per_s == 0


async def test_the_decoders_stream_passes_unchanged(pair: Build) -> None:
    world = await pair("nixl")
    async with world.client.stream(
        "POST",
        "/v1/completions",
        json={"model": "llama", "prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "stream": True},
    ) as stream:
        lines = [line async for line in stream.aiter_lines()]
    assert stream.headers["x-weir-flow"] == "offload_nixl"
    assert lines[-2] == "data: [DONE]"
    assert not any('"usage"' in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_completion_tokens": 20}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 20}),
        ("/v1/messages", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20}),
    ],
)
async def test_every_api_that_decodes_can_be_offloaded(pair: Build, path: str, body: dict[str, object]) -> None:
    world = await pair("nixl")
    response = await world.client.post(path, json={"model": "llama", **body})
    assert response.status_code == 200
    assert response.headers["x-weir-flow"] == "offload_nixl"
    assert world.sims[1].external() > 1900
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_request_that_cannot_be_offloaded_is_served_in_one_place(pair: Build) -> None:
    world = await pair("nixl")
    response = await world.ask(n=2)
    receipt = await world.receipt(response)
    assert response.status_code == 200
    assert (receipt["flow"], receipt["offload"]) == ("colocated", "ineligible")
    assert receipt["offload_reason"] == "several answers to one prompt"
    assert world.sims[1].external() == 0
    assert world.counted() == {("demo", "nixl", "ineligible"): 1}


@pytest.mark.slow
async def test_load_is_counted_on_its_instance(pair: Build) -> None:
    world = await pair("nixl", flags={"time_scale": 1})
    long = "a longer prompt " * 5000
    request = world.client.build_request(
        "POST", "/v1/completions", json={"model": "llama", "prompt": long, "max_tokens": 2000, "ignore_eos": True}
    )
    prefiller, decoder = world.pool.endpoints["demo-0"], world.pool.endpoints["demo-1"]
    sending = asyncio.ensure_future(world.client.send(request))
    await world.until(lambda: prefiller.requests == 1)
    assert prefiller.prefill_tokens > 10_000
    assert (decoder.requests, decoder.prefill_tokens, decoder.decodes) == (1, 0, 0)
    await world.until(lambda: prefiller.requests == 0)
    sending.cancel()
    await world.nothing_is_left()


async def test_small_requests_stay_on_their_decoder(pair: Build) -> None:
    world = await pair("nixl", roles=("both", "both"))
    response = await world.ask("short")
    assert response.headers["x-weir-flow"] == "colocated"
    assert "prefill_instance" not in await world.receipt(response)


@pytest.mark.slow
async def test_a_long_session_is_not_moved_again_for_a_short_prompt(pair: Build) -> None:
    world = await pair("nixl", roles=("both", "both"))
    await world.ask(user="ada")
    response = await world.ask(PROMPT + "and then?", user="ada")
    assert response.headers["x-weir-flow"] == "colocated"
    assert (await world.receipt(response))["cached_tokens"] >= 1984


async def test_a_body_that_cannot_be_rewritten_is_not_offloaded(pair: Build) -> None:
    world = await pair("nixl")
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    response = await world.ask(metadata={"x": deep})
    assert (response.status_code, response.headers["x-weir-flow"]) == (200, "colocated")
    assert (await world.receipt(response))["offload"] == "ineligible"


MEASURED = Rates(prefill_tokens_per_s=1_000.0, kv_bytes_per_token=PER_TOKEN, transfer_bytes_per_s=1e12)


async def test_an_instance_pulls_a_prefix_from_a_peer_and_computes_it_if_the_peer_is_gone(pair: Build) -> None:
    turns = {"flow__heavy": "colocated", "flow__pull_gb_per_s": 100.0, "strategy__name": "round_robin"}
    world = await pair("nixl", roles=("both",) * 3, **turns)
    holder = (await world.ask()).headers["x-weir-instance"]
    world.pool.rates = MEASURED
    pulled = await world.receipt(await world.ask(PROMPT + "and then?"))
    assert (pulled["flow"], pulled["offload"], pulled["prefill_instance"]) == ("offload_nixl", "ok", holder)
    assert pulled["reasons"][-1].startswith(f"pull: {holder} holds 1,9")
    assert 0 < pulled["pull_ms"] < 100
    assert pulled["prefill_ms"] > 0
    puller = next(sim for sim in world.sims if sim.name == pulled["instance"] != holder)
    assert puller.external() > 1990
    await world.nothing_is_left()
    for sim in world.sims:
        if sim.name in (holder, puller.name):
            sim.stop()
    receipt = await world.receipt(await world.ask(PROMPT + "and then?"))
    assert (receipt["status"], receipt["flow"], receipt["offload"]) == (200, "colocated", "fallback")
    assert receipt["instance"] not in (holder, puller.name)
    assert receipt["prefill_instance"] in receipt["offload_reason"]  # and no other instance was asked
    await world.nothing_is_left()
