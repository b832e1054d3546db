"""With TensorRT-LLM, the context server's answer is sent together with the request to the generation server."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from router.tests.engine import ANSWER, Engine, reply, stream
from router.tests.flows.conftest import PER_TOKEN, PROMPT, Build, Pair
from router.tests.flows.test_nixl import alone, text
from router.tests.flows.test_nixl_faults import LONG
from router.tests.flows.test_parallel_pd import said

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": PROMPT + "odd"}]


async def chat(world: Pair, **body: Any) -> Any:
    asked = {"model": "llama", "messages": MESSAGES, "max_tokens": 20, "ignore_eos": True, **body}
    return await world.client.post(CHAT, json=asked)


async def test_the_answer_equals_that_of_one_server_and_the_receipt_shows_both_halves(pair: Build) -> None:
    world = await pair("trtllm")
    response = await world.ask()
    receipt = await world.receipt(response)
    assert world.sims[1].external() == 1999
    await world.nothing_is_left()
    assert text(response) == await alone(world.sims[0])
    assert (receipt["flow"], receipt["instance"], receipt["prefill_instance"]) == ("offload_trtllm", "demo-1", "demo-0")
    assert (receipt["offload"], receipt["offload_reason"]) == ("ok", "")
    assert (receipt["actual_prompt_tokens"], receipt["output_tokens"]) == (2000, 20)
    assert receipt["cached_tokens"] == 0  # at the context server, which computed the whole prompt
    assert receipt["transfer_bytes"] == receipt["prompt_tokens"] * PER_TOKEN
    assert 0 < receipt["prefill_ms"] < receipt["e2e_ms"]


async def test_a_chat_is_one_stream_with_one_first_token_and_its_usage(pair: Build) -> None:
    world = await pair("trtllm")
    body = {"messages": MESSAGES, "max_tokens": 20, "ignore_eos": True}
    async with httpx.AsyncClient() as client:
        whole = (await client.post(world.sims[0].url + CHAT, json=body)).json()
    lines = (await chat(world, stream=True, stream_options={"include_usage": True})).text.splitlines()
    assert said(lines, chat=True) == whole["choices"][0]["message"]["content"]
    joined = "\n".join(lines)
    assert (joined.count('"role"'), joined.count('"finish_reason":"length"')) == (1, 1)
    used = json.loads(next(line for line in lines if '"usage"' in line)[6:])["usage"]
    assert (used["prompt_tokens"], used["completion_tokens"]) == (whole["usage"]["prompt_tokens"], 20)
    assert world.counted() == {("demo", "trtllm", "ok"): 1}
    await world.nothing_is_left()


async def test_the_context_servers_usage_does_not_count_as_the_generation_servers_cache(pair: Build) -> None:
    world = await pair("trtllm")
    first, second = [await world.receipt(await world.ask(user="ada")) for _ in range(2)]
    assert first["predicted_cached"] == 0
    assert (second["flow"], second["instance"]) == ("colocated", "demo-1")
    assert second["predicted_cached"] > 1900
    assert second["cached_tokens"] > 1900


@pytest.mark.slow
async def test_a_context_server_killed_during_a_request_is_replaced(pair: Build) -> None:
    world = await pair("trtllm", roles=("prefill", "prefill", "decode"), flags={"time_scale": 1})
    asking = asyncio.ensure_future(world.ask(LONG, max_tokens=2, stream=True))
    context, busy = world.sims[:2], []
    # The server is asked once: the prefill lasts a second or two, and on a slow machine each call takes up part of
    # that.
    await world.until(lambda: busy.extend(sim for sim in context if sim.figure("num_requests_running")) or busy)
    killed = busy[0]
    killed.stop()
    other = next(sim for sim in context if sim is not killed)
    receipt = await world.receipt(await asking)
    assert (receipt["status"], receipt["flow"], receipt["prefill_instance"]) == (200, "offload_trtllm", other.name)
    assert receipt["offload_reason"].startswith(f"{killed.name}: the engine closed the connection")
    await world.nothing_is_left()


@pytest.mark.slow
async def test_without_another_context_server_the_generation_server_computes_the_prompt(pair: Build) -> None:
    world = await pair("trtllm")
    world.sims[0].stop()
    receipt = await world.receipt(await world.ask())
    assert (receipt["status"], receipt["flow"], receipt["offload"]) == (200, "colocated", "fallback")
    await world.nothing_is_left()


@pytest.mark.slow
async def test_an_unreachable_generation_server_is_replaced_by_one_that_gets_the_kv(pair: Build) -> None:
    world = await pair("trtllm", roles=("prefill", "decode", "decode"))
    world.sims[1].stop()
    receipts = [await world.receipt(await world.ask(f"{turn} {PROMPT}")) for turn in range(4)]
    assert {(one["status"], one["flow"], one["instance"]) for one in receipts} == {(200, "offload_trtllm", "demo-2")}
    assert world.sims[0].figure("request_success_total") == 4  # no prompt was computed twice
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_generation_server_killed_during_the_transfer_is_replaced(pair: Build) -> None:
    world = await pair("trtllm", roles=("prefill", "decode", "decode"), flags={"kv_setup_ms": 600_000})  # six seconds
    asking = asyncio.ensure_future(world.ask())
    queries = "external_prefix_cache_queries_total"
    await world.until(lambda: any(sim.figure(queries) for sim in world.sims[1:]))
    next(sim for sim in world.sims[1:] if sim.figure(queries)).stop()
    receipt = await world.receipt(await asking)
    assert (receipt["status"], receipt["retries"], receipt["flow"]) == (200, 1, "offload_trtllm")
    await world.nothing_is_left()


@pytest.mark.slow
async def test_a_generation_server_killed_in_a_stream_ends_it_with_an_error(pair: Build) -> None:
    world = await pair("trtllm", flags={"time_scale": 1})
    body = {"model": "llama", "prompt": PROMPT, "max_tokens": 5000, "ignore_eos": True, "stream": True}
    async with world.client.stream("POST", "/v1/completions", json=body) as answer:
        parts = answer.aiter_text()
        await anext(parts)
        world.sims[1].stop()
        rest = "".join([part async for part in parts])
    assert '"code":"upstream_failed"' in rest
    await world.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(("fallback", "status"), [("local", 200), ("fail", 502)])
async def test_freed_kv_is_computed_again_or_reported(pair: Build, fallback: str, status: int) -> None:
    world = await pair("trtllm", flags={"kv_hold_s": 0.01}, failure__offload_fallback=fallback)
    response = await world.ask()
    assert response.status_code == status
    assert "demo-1 did not get the KV of demo-0" in (await world.receipt(response))["offload_reason"]
    await world.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{"time_scale": 1}, {"kv_setup_ms": 100_000}], ids=["prefill", "transfer"])
async def test_a_client_that_leaves_ends_both_halves(pair: Build, flags: dict[str, Any]) -> None:
    world = await pair("trtllm", flags=flags)
    asking = asyncio.ensure_future(world.ask(LONG if "time_scale" in flags else PROMPT, max_tokens=5000))
    busy = world.sims[0] if "time_scale" in flags else world.sims[1]
    await world.until(lambda: busy.figure("num_requests_running") + busy.figure("num_requests_waiting"))
    asking.cancel()
    await world.nothing_is_left()
    assert [sim.figure("num_requests_running") for sim in world.sims] == [0, 0]


# With fake servers


PARAMS = {
    "request_type": "context_only",
    "first_gen_tokens": [7],
    "ctx_request_id": 2**62 + 1,
    "encoded_opaque_state": "c3RhdGU=",
    "draft_tokens": None,
    "disagg_request_id": 2**62 + 1,
    "ctx_usage": None,
}
USAGE = {"prompt_tokens": 2000, "completion_tokens": 1, "total_tokens": 2001}


def context_answer(finish_reason: str | None = "length", **changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "one", "finish_reason": finish_reason, "disaggregated_params": PARAMS}
    answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "llama", "usage": USAGE}
    return answer | {"choices": [choice | changes], "prompt_token_ids": [1, 2, 3, 4]}


async def test_the_two_requests_equal_those_of_the_engines_own_proxy(servers: Any) -> None:
    made = await servers([reply(context_answer())], [stream()])
    body = {"stop": ["."], "response_format": {"type": "json_object"}, "max_tokens": 9, "stream": True}
    assert (await made.world.ask(**body)).status_code == 200
    asked, continued = made.context[0].received[0].document, made.generation[0].received[0].document
    own = asked.pop("disaggregated_params")
    assert own["request_type"] == "context_only"
    assert 2**62 <= own["disagg_request_id"] < 2**63
    given = {"model": "llama", "ignore_eos": True, "stop": ["."], "response_format": {"type": "json_object"}}
    assert asked == given | {"prompt": PROMPT, "max_tokens": 9, "stream": False}
    params = PARAMS | {"request_type": "generation_only", "ctx_usage": USAGE}
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9}
    assert continued == given | options | {"prompt": [1, 2, 3, 4], "disaggregated_params": params}
    made.generation[0].behaviour = reply(ANSWER)
    await chat(made.world)
    continued = made.generation[0].received[1].document
    assert (continued["messages"], continued["prompt_token_ids"]) == (MESSAGES, [1, 2, 3, 4])


async def test_an_answer_that_ends_with_its_first_token_comes_from_the_context_server(servers: Any) -> None:
    made = await servers([reply(context_answer("stop", disaggregated_params=None))], [reply()])
    whole, streamed = [await made.world.ask(f"{stream} {PROMPT}", stream=stream) for stream in (False, True)]
    for response in (whole, streamed):
        receipt = await made.world.receipt(response)
        assert (receipt["offload"], receipt["output_tokens"]) == ("ok", 1)
        assert receipt["offload_reason"] == "prefill-0 completed the answer: it ends with its first token"
        assert "disaggregated_params" not in response.text
        assert "prompt_token_ids" not in response.text
    assert text(whole) == said(streamed.text.splitlines(), chat=False) == "one"
    assert streamed.text.count('"finish_reason":"stop"') == 1
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in streamed.text  # the client did not ask
    message = {"role": "assistant", "content": "one"}
    made.context[0].behaviour = reply(context_answer("stop", message=message) | {"object": "chat.completion"})
    spoken = (await chat(made.world, stream=True)).text
    assert said(spoken.splitlines(), chat=True) == "one"
    assert '"object":"chat.completion.chunk"' in spoken
    assert not made.generation[0].received


UNUSABLE = [
    ({"choices": [{"text": "one"}, {"text": "two"}]}, "the answer to a context request must have one choice"),
    (context_answer(disaggregated_params=None), "the answer has no disaggregated_params: is it a context server"),
    (
        context_answer(disaggregated_params=PARAMS | {"ctx_request_id": None}),
        "the answer has no disaggregated_params.ctx_request_id",
    ),
]


@pytest.mark.parametrize("fallback", ["fail", "local"])
async def test_context_answers_that_cannot_be_continued_count_against_their_server(servers: Any, fallback: str) -> None:
    rules = {"failure__offload_fallback": fallback, "failure__breaker_failures": len(UNUSABLE)}
    made = await servers([reply()], [reply(ANSWER)], **rules)
    made.context[0].script += [reply(answer) for answer, _ in UNUSABLE]
    for answer, why in UNUSABLE:
        assert made.world.pool.endpoints["prefill-0"].breaker.state == "closed"
        response = await made.world.ask(f"{why} {PROMPT}")
        receipt = await made.world.receipt(response)
        assert receipt["offload_reason"].startswith(f"prefill-0: {why}"), answer
        assert (response.status_code, response.json()["error"]["code"]) == (502, "prefill_failed")
        assert why in response.json()["error"]["message"]
    assert not made.generation[0].received  # without a context, a generation server would wait for one
    breaker = made.world.pool.endpoints["prefill-0"].breaker
    # The breaker of the last server of its role, for one client
    assert (breaker.state, breaker.failures) == ("closed", len(UNUSABLE))


async def test_another_context_server_takes_over_before_the_first_token(servers: Any) -> None:
    broken = reply({"error": "out of memory"}, 500)
    rules = {"failure__offload_fallback": "fail", "failure__breaker_failures": 100, "failure__retries": 2}
    made = await servers([broken, reply(context_answer())], [reply(ANSWER)], **rules)
    receipts = [await made.world.receipt(await made.world.ask(f"{turn} {PROMPT}")) for turn in range(5)]
    assert {one["status"] for one in receipts} == {200}
    assert {one["prefill_instance"] for one in receipts} == {"prefill-1"}
    assert len(made.generation[0].received) == 5
    assert made.world.counted() == {("demo", "trtllm", "ok"): 5}
    failed = sum(len(one.received) for one in made.context[:1])
    assert failed
    assert sum(one["offload_reason"].count("answered 500") for one in receipts) == failed


async def test_a_bad_request_is_not_tried_on_another_context_server(servers: Any) -> None:
    wrong = reply({"error": "too long"}, 400)
    made = await servers([wrong, wrong], [wrong])
    assert (await made.world.ask()).status_code == 400
    assert sum(len(one.received) for one in made.context) == 1


async def test_a_client_that_leaves_ends_the_context_request(servers: Any) -> None:
    async def never(engine: Engine, *_: Any) -> None:
        await engine.release.wait()

    made = await servers([never], [reply()])
    asking = asyncio.ensure_future(made.world.ask())
    await made.world.until(lambda: made.context[0].received)
    asking.cancel()
    await asyncio.wait_for(made.context[0].cancelled.wait(), 30)
    assert not made.generation[0].received
    await made.world.until(lambda: made.world.counted() == {("demo", "trtllm", "cancelled"): 1})
