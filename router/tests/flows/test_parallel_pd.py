"""Neuron's disaggregated inference gets both requests at once; the first token comes from the prefill instance."""

import asyncio
import json
from typing import Any

import pytest

from router.tests.flows.conftest import PROMPT, Build, Pair
from router.tests.flows.test_nixl import alone, text
from router.upstream.answer.stream_tail import StreamTail
from router.upstream.answer.usage import parse

ROLES = ("prefill", "decode")


def said(lines: list[str], chat: bool) -> str:
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for made in data for choice in made.get("choices", ())]
    return "".join((c["delta"].get("content") or "") if chat else c["text"] for c in choices)


async def stream(world: Pair, path: str, **body: Any) -> list[str]:
    asked = {"model": "llama", "max_tokens": 20, "ignore_eos": True, "stream": True, **body}
    async with world.client.stream("POST", path, json=asked) as answer:
        assert answer.status_code == 200
        assert answer.headers["x-weir-flow"] == "offload_neuron"
        return [line async for line in answer.aiter_lines() if line]


@pytest.mark.parametrize("streamed", [True, False])
async def test_two_instances_give_the_same_answer_as_one(pair: Build, streamed: bool) -> None:
    world = await pair("neuron", ROLES)
    if streamed:
        lines = await stream(world, "/v1/completions", prompt=PROMPT)
        answer = said(lines, chat=False)
        assert lines[-1] == "data: [DONE]"
    else:
        answer = text(await world.ask())
    assert world.sims[1].external() == 2000
    await world.nothing_is_left()
    assert (world.pool.rates.transfer_bytes_per_s > 0) is streamed
    assert answer == await alone(world.sims[0])


@pytest.mark.slow
async def test_a_chat_is_one_stream_with_one_role_and_one_end(pair: Build) -> None:
    world = await pair("neuron", ROLES)
    messages = [{"role": "user", "content": PROMPT}]
    lines = await stream(world, "/v1/chat/completions", messages=messages, stream_options={"include_usage": True})
    body = {"model": "llama", "messages": messages, "max_tokens": 20, "ignore_eos": True}
    whole = await world.client.post("/v1/chat/completions", json=body)
    assert said(lines, chat=True) == whole.json()["choices"][0]["message"]["content"]
    joined = "\n".join(lines)
    assert joined.count('"role"') == 1
    assert joined.count('"finish_reason":"length"') == 1
    tail = StreamTail()
    tail.add("\n\n".join(lines).encode())
    used = parse(tail.ended().usage)
    assert used is not None
    assert used.output_tokens == 20
    await world.nothing_is_left()


async def test_an_answer_of_one_token_is_complete(pair: Build) -> None:
    world = await pair("neuron", ROLES)
    lines = await stream(world, "/v1/completions", prompt=PROMPT, max_tokens=1)
    assert len(said(lines, chat=False)) == 4
    assert '"finish_reason":"length"' in "".join(lines)


async def test_other_apis_are_served_in_one_place(pair: Build) -> None:
    world = await pair("neuron", roles=("both", "both"))
    response = await world.client.post("/v1/responses", json={"model": "llama", "input": PROMPT})
    assert response.status_code == 200
    receipt = await world.receipt(response)
    assert receipt["offload_reason"] == "/v1/responses cannot be offloaded between neuron instances"


@pytest.mark.slow
async def test_a_fixed_pair_needs_no_addresses(pair: Build, sims: Any) -> None:
    prefiller = sims("demo-0", kv="neuron", role="prefill")
    decoder = sims("demo-1", kv="neuron", role="decode", kv_peer=prefiller.address)
    world = await pair("neuron", ROLES)
    for entry, sim in zip(world.entries, (prefiller, decoder), strict=True):
        entry |= {"url": sim.url, "kv": {"peer": prefiller.address}}
    world.sims[:] = [prefiller, decoder]
    world.publish()
    await world.until(lambda: world.pool.endpoints["demo-1"].kv.peer)
    response = await world.ask()
    assert (await world.receipt(response))["offload_reason"] == ""
    assert response.headers["x-weir-flow"] == "offload_neuron"
    assert decoder.external() == 2000
    assert text(response) == await alone(prefiller)


@pytest.mark.slow
async def test_declared_pairs_are_not_mixed(pair: Build, sims: Any) -> None:
    """With two pairs, each decoder gets its KV only from the prefill instance that it knows."""
    prefillers = [sims(f"demo-{n}", kv="neuron", role="prefill") for n in (0, 1)]
    decoders = [sims(f"demo-{n + 2}", kv="neuron", role="decode", kv_peer=prefillers[n].address) for n in (0, 1)]
    world = await pair("neuron", roles=("prefill", "prefill", "decode", "decode"))
    world.published.policy(strategy="round_robin_pd")
    world.sims[:] = [*prefillers, *decoders]
    for entry, sim in zip(world.entries, world.sims, strict=True):
        entry["url"] = sim.url
    world.publish(demo_2={"kv": {"pair": "demo-0"}}, demo_3={"kv": {"pair": "demo-1"}})
    await world.until(lambda: world.pool.endpoints["demo-3"].kv.pair)
    receipts = [await world.receipt(await world.ask(f"{turn} " + PROMPT)) for turn in range(4)]
    assert {(made["instance"], made["prefill_instance"], made["flow"]) for made in receipts} == {
        ("demo-2", "demo-0", "offload_neuron"),
        ("demo-3", "demo-1", "offload_neuron"),
    }
    assert all(decoder.external() > 2000 for decoder in decoders)
    prefillers[0].stop()  # the router notices this at the first request, after which the other pair serves
    receipts = [await world.receipt(await world.ask(f"{turn} again " + PROMPT)) for turn in range(4)]
    assert {receipt["status"] for receipt in receipts} == {200}
    assert {(made["instance"], made["prefill_instance"], made["offload"]) for made in receipts} == {
        ("demo-3", "demo-1", "ok")
    }
    await world.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("role", "outcome"), [("both", (200, "fallback")), ("decode", (502, "failed"))])
async def test_when_the_only_prefill_is_dead_a_decoder_serves_alone_if_its_role_allows(
    pair: Build, streamed: bool, role: str, outcome: tuple[int, str]
) -> None:
    world = await pair("neuron", ("prefill", role))
    world.sims[0].stop()
    response = await world.ask(stream=streamed)
    receipt = await world.receipt(response)
    assert (response.status_code, receipt["offload"], receipt["flow"]) == (*outcome, "colocated")
    await world.nothing_is_left()


@pytest.mark.slow
async def test_when_the_decoder_is_dead_the_request_is_sent_to_another(pair: Build) -> None:
    world = await pair("neuron", roles=("prefill", "decode", "decode"))
    world.sims[1].stop()
    receipts = [await world.receipt(await world.ask(f"{turn} " + PROMPT)) for turn in range(3)]
    assert {receipt["status"] for receipt in receipts} == {200}
    assert {receipt["instance"] for receipt in receipts} == {"demo-2"}
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_client_that_leaves_ends_both_halves(pair: Build) -> None:
    world = await pair("neuron", ROLES, flags={"time_scale": 1, "kv_hold_s": 2})
    asking = asyncio.ensure_future(world.ask("a longer prompt " * 5000, stream=True))
    await world.until(lambda: world.pool.endpoints["demo-0"].requests == 1)
    asking.cancel()
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_decoder_that_dies_after_the_first_token_ends_the_stream_with_an_error(pair: Build) -> None:
    world = await pair("neuron", ROLES, flags={"kv_setup_ms": 600_000})  # KV transfers take six seconds
    body = {"model": "llama", "prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "stream": True}
    async with world.client.stream("POST", "/v1/completions", json=body) as answer:
        parts = answer.aiter_text()
        first = await anext(parts)
        world.sims[1].stop()
        rest = "".join([part async for part in parts])
    assert '"text"' in first
    assert '"code":"upstream_failed"' in rest
    await world.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(("fallback", "role"), [("local", "both"), ("local", "decode"), ("fail", "decode")])
async def test_kv_that_does_not_arrive_after_the_first_token_ends_the_stream(
    pair: Build, fallback: str, role: str
) -> None:
    """The decoder continues by itself, or the stream ends with an error because its beginning has been sent."""
    world = await pair("neuron", ("prefill", role), flags={"kv_hold_s": 0.01}, failure__offload_fallback=fallback)
    body = {"model": "llama", "prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "stream": True}
    answer = await world.client.post("/v1/completions", json=body)
    assert answer.status_code == 200
    broken = '"code":"upstream_failed"' in answer.text
    told = said(answer.text.splitlines(), chat=False)
    whole = await alone(world.sims[1])
    assert whole == told if not broken else whole.startswith(told)
    assert broken is (role == "decode")
    await world.nothing_is_left()
