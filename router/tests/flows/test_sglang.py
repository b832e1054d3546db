"""SGLang's prefill and decode servers receive a request at the same time, in a room of the prefill's bootstrap
server."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.tests.conftest import entry
from router.tests.engine import Engine, reply
from router.tests.flows.conftest import PER_TOKEN, PROMPT, Build, Sim
from router.tests.flows.test_nixl import alone, text

SPLIT = ("prefill", "decode")
USAGE = {"prompt_tokens": 2000, "completion_tokens": 1, "total_tokens": 2001}
ROOM = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


def answer(words: str = "one") -> Any:
    return reply({"choices": [{"index": 0, "text": words, "finish_reason": "length"}], "usage": USAGE})


async def until(true: Callable[[], Any]) -> None:
    for _ in range(1500):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came")


async def never(engine: Engine, *_: Any) -> None:
    await engine.release.wait()


async def test_the_answer_equals_that_of_a_single_engine_and_a_client_that_leaves_frees_both(
    pair: Build, sims: Callable[..., Sim]
) -> None:
    world = await pair("sglang", SPLIT)
    response = await world.ask()
    receipt = await world.receipt(response)
    await world.nothing_is_left()
    assert text(response) == await alone(sims("other"))
    assert world.sims[1].external() == 1999
    assert (receipt["flow"], receipt["instance"], receipt["prefill_instance"]) == ("offload_sglang", "demo-1", "demo-0")
    assert (receipt["offload"], receipt["output_tokens"], receipt["cached_tokens"]) == ("ok", 20, 0)
    assert receipt["transfer_bytes"] == receipt["prompt_tokens"] * PER_TOKEN
    asking = asyncio.ensure_future(world.ask("again " + PROMPT, max_tokens=100_000))
    await world.until(lambda: world.sims[1].figure("num_requests_running"))
    asking.cancel()
    await world.nothing_is_left()


async def test_a_simulated_prefill_refuses_a_request_without_a_room_and_one_in_a_used_room(
    sims: Callable[..., Sim],
) -> None:
    prefill, decoder = (sims(role, kv="sglang", role=role) for role in SPLIT)
    body = {"prompt": "a b c d", "max_tokens": 5, "ignore_eos": True}
    room = dict(zip(ROOM, ("127.0.0.1", prefill.port, 77), strict=True))
    async with httpx.AsyncClient(timeout=30) as client:

        async def ask(sim: Sim, **more: Any) -> httpx.Response:
            return await client.post(sim.url + "/v1/completions", json=body | more)

        for sim in (prefill, decoder):
            assert "without bootstrap room id" in (await ask(sim)).text
        first, second = await asyncio.gather(ask(prefill, **room), ask(decoder, **room))
        assert (first.json()["usage"]["completion_tokens"], second.json()["usage"]["completion_tokens"]) == (1, 5)
        doubled = await ask(prefill, **room)
        assert (doubled.status_code, "Duplicate room" in doubled.text) == (500, True)
        lonely = asyncio.ensure_future(ask(prefill, **room | {"bootstrap_room": 78}))
        await until(lambda: prefill.figure("request_success_total") == 2)
        assert not lonely.done()  # it is waiting for a decoder
        lonely.cancel()
        await until(lambda: not prefill.figure("kv_cache_usage_perc"))


async def test_both_engines_get_the_clients_options_and_the_same_room(servers: Any) -> None:
    made = await servers([answer()], [answer("one two")], "sglang")
    forced = {"tool_choice": "required", "response_format": {"type": "json_object"}, "max_tokens": 9, "stop": ["."]}
    assert text(await made.world.ask(**forced)) == "one two"
    await made.world.ask("again " + PROMPT)
    given = {"model": "llama", "ignore_eos": True, "prompt": PROMPT} | forced
    rooms = []
    for engines, more in ((made.context, {"stream": False}), (made.generation, {})):
        asked = engines[0].received[0].document
        rooms.append([asked.pop(name) for name in ROOM])
        assert asked == given | more
    assert rooms[0] == rooms[1]
    assert rooms[0][:2] == ["127.0.0.1", made.context[0].port]
    assert 0 < rooms[0][2] < 2**63
    assert made.context[0].received[1].document["bootstrap_room"] != rooms[0][2]


async def test_a_rank_is_named_to_both_engines_and_agrees_with_the_room_number(servers: Any) -> None:
    made = await servers([answer()], [answer()], "sglang")
    made.world.entries[0]["dp"] = {"ranks": 4}
    made.world.publish()
    await made.world.until(lambda: len(made.world.pool.endpoints) == 5)
    for turn in range(6):
        assert (await made.world.ask(f"{turn} {PROMPT}")).status_code == 200
    for prefill, decode in zip(made.context[0].received, made.generation[0].received, strict=True):
        rank = int(prefill.headers["x-data-parallel-rank"])
        for half in (prefill.document, decode.document):
            assert (half["disagg_prefill_dp_rank"], half["bootstrap_room"] % 4) == (rank, rank)


async def test_another_prefill_takes_over_in_another_room(servers: Any) -> None:
    turns = iter((reply({"error": {"message": "Prefill transfer failed"}}, 500), answer()))

    async def once_broken(*given: Any) -> None:
        await next(turns)(*given)

    made = await servers([once_broken, once_broken], [answer()], "sglang")
    made.generation[0].script = [never]
    receipt = await made.world.receipt(await made.world.ask())
    tried = [one.document["bootstrap_room"] for one in made.generation[0].received]
    assert len(set(tried)) == len(tried) == 2
    failed = {"prefill-0": "prefill-1", "prefill-1": "prefill-0"}[receipt["prefill_instance"]]
    assert receipt["offload_reason"].startswith(f"{failed} answered 500: ")
    assert made.generation[0].cancelled.is_set()


async def test_a_half_that_hangs_ends_both_and_the_answer_names_both(servers: Any) -> None:
    made = await servers([never], [never], "sglang", failure__prefill_timeout_s=0.2, failure__retries=0)
    response = await made.world.ask()
    why = "prefill-0 did not compute the prompt within 0.2 s, or decode-0 did not take its KV"
    assert (response.status_code, response.json()["error"]["code"]) == (504, "prefill_timeout")
    assert why in response.json()["error"]["message"]
    for half in (*made.context, *made.generation):
        await asyncio.wait_for(half.cancelled.wait(), 30)


@pytest.mark.parametrize("suspended", [0, 1])
async def test_a_suspended_half_ends_both_and_leaves_nothing_in_the_other(pair: Build, suspended: int) -> None:
    world = await pair("sglang", SPLIT, failure__prefill_timeout_s=1, failure__retries=0)
    world.sims[suspended].suspend()
    response = await world.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "prefill_timeout")
    assert "demo-0 did not compute the prompt within 1 s, or demo-1" in response.json()["error"]["message"]
    await world.until(lambda: not world.sims[1 - suspended].figure("kv_cache_usage_perc"))
    assert not any(one.requests for one in world.pool.endpoints.values())


async def test_a_room_that_was_used_before_costs_the_client_nothing(
    pair: Build, sims: Callable[..., Sim], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await pair("sglang", ("prefill", *SPLIT))
    world.pool.endpoints["demo-1"].prefill_tokens += 10**6  # so that the first one is chosen
    rooms, draw = iter((7, 7)), random.randrange
    monkeypatch.setattr(random, "randrange", lambda *given: next(rooms, None) or draw(*given))
    assert (await world.ask("first " + PROMPT)).status_code == 200
    response = await world.ask()
    receipt = await world.receipt(response)
    assert text(response) == await alone(sims("other"))
    assert (receipt["offload"], receipt["prefill_instance"]) == ("ok", "demo-1")
    assert receipt["offload_reason"].startswith("demo-0 answered 500")
    assert "Duplicate room" in receipt["offload_reason"]


async def test_kv_that_does_not_arrive_is_named(servers: Any) -> None:
    lost = reply({"error": {"message": "Decode transfer failed for request"}}, 500)
    made = await servers([answer()], [lost], "sglang", failure__retries=0)
    response = await made.world.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (502, "prefill_failed")
    assert "decode-0 did not get the KV of prefill-0: " in response.json()["error"]["message"]


async def test_a_prefill_without_a_bootstrap_server_is_named(servers: Any) -> None:
    made = await servers([answer()], [answer()], "sglang")
    made.world.entries[0] = entry("prefill-0", made.context[0].url, role="prefill", connector="sglang")
    made.world.publish()
    await made.world.until(lambda: not made.world.pool.endpoints["prefill-0"].kv.bootstrap)
    assert "prefill-0: its fleet entry has no kv.bootstrap" in (await made.world.ask()).json()["error"]["message"]


async def test_a_server_of_both_roles_gets_no_prefill_because_it_would_compute_the_answer(servers: Any) -> None:
    made = await servers([answer()], [answer()], "sglang")
    made.world.entries = [one | {"role": "both"} for one in made.world.entries]
    made.world.publish()
    await made.world.until(lambda: {one.role for one in made.world.pool.endpoints.values()} == {"both"})
    receipt = await made.world.receipt(await made.world.ask())
    assert (receipt["flow"], receipt["offload"]) == ("colocated", "ineligible")
    assert len(made.context[0].received) + len(made.generation[0].received) == 1
