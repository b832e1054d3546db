"""The answer to a prefill is judged like any other: by its content, not by its status."""

import asyncio
from typing import Any

import pytest

from router.tests.conftest import entry, key_entry
from router.tests.engine import ANSWER, Behaviour, reply, stream
from router.tests.test_keys import ALICE, bearer

PROMPT = "the quick brown fox " * 400
DEAD = {"error": {"message": "EngineCore is dead", "code": 500}}
WRONG = {"error": {"message": "the prompt is too long", "type": "BadRequestError", "code": 400}}
GONE = stream([b'data: {"error":{"message":"EngineCore is dead","code":500}}\n\n'])
HOLLOW = stream([b'data: {"choices":[{"text":""}]}\n\n', b"data: [DONE]\n\n"])


async def offloading(world: Any, connector: str, *behaviours: Behaviour | None, **policy: Any) -> Any:
    """Build a router whose last engine decodes the prompts that the others have computed."""
    rules = {"strategy": "adaptive_v1", "flow__heavy": "offload", "classes__heavy_new_tokens": 1000}
    w = await world(*behaviours, None, **rules, classes__warm_new_tokens=100, failure__breaker_failures=5, **policy)
    last = len(w.engines) - 1
    roles = {place: "both" if place == last else "prefill" for place in range(last + 1)}
    w.published.fleet(
        *(
            entry(f"demo-{place}", made.url, role=roles[place], connector=connector)
            for place, made in enumerate(w.engines)
        )
    )
    pool = w.router.pools.get("demo")
    await w.until(lambda: [one.connector for one in pool.endpoints.values()] == [connector] * (last + 1), "the fleet")
    return w


def failures(w: Any) -> list[int]:
    return [one.breaker.failures for one in w.router.pools.get("demo").endpoints.values()]


@pytest.mark.parametrize(
    ("connector", "behaviour", "streams"),
    [
        ("mooncake_store", reply(DEAD), False),
        ("mooncake_store", reply([]), False),
        ("mooncake_store", reply({"choices": []}), True),
        ("nixl", reply(DEAD), True),
        ("neuron", GONE, True),
        ("neuron", HOLLOW, True),
        ("neuron", reply(DEAD), False),
    ],
)
async def test_a_prefill_that_fails_inside_an_answer_of_200_counts_and_the_decoder_serves(
    world: Any, connector: str, behaviour: Behaviour, streams: bool
) -> None:
    w = await offloading(world, connector, behaviour)
    receipt = await w.receipt(await w.ask(prompt=PROMPT, stream=streams))
    assert (receipt["result"], receipt["offload"]) == ("served", "fallback")
    assert failures(w) == [1, 0]


async def test_a_prompt_error_inside_an_answer_of_200_is_the_clients_mistake(world: Any) -> None:
    w = await offloading(world, "mooncake_store", reply(WRONG), failure__offload_fallback="fail")
    response = await w.ask(prompt=PROMPT)
    assert (response.status_code, "too long" in response.text) == (400, True)
    receipt = await w.receipt(response)
    assert [receipt[name] for name in ("result", "fault")] == ["client_error", "client"]
    assert failures(w) == [0, 0]


async def until_asked(w: Any, engine: Any) -> list[dict[str, Any]]:
    """Return the receipts of requests until the engine has received one; equal engines are chosen at random."""
    receipts: list[dict[str, Any]] = []
    while len(receipts) < 3 or (not engine.received and len(receipts) < 50):
        receipts.append(await w.receipt(await w.ask(prompt=f"{len(receipts)} {PROMPT}")))
    return receipts


async def test_a_404_that_only_one_prefill_gives_is_its_own_failure_and_another_computes_the_prompt(world: Any) -> None:
    lost = reply({"error": {"message": "the model does not exist", "code": 404}}, 404)
    # Without usage, from which the router would learn that prompts are shorter
    served = reply({**ANSWER, "usage": None})
    w = await offloading(world, "mooncake_store", lost, served)
    w.engines[2].behaviour = served
    receipts = await until_asked(w, w.engines[0])
    assert {receipt["offload"] for receipt in receipts} == {"ok"}
    assert failures(w) == [len(w.engines[0].received), 0, 0]
    assert w.engines[0].received


@pytest.mark.parametrize("fallback", ["local", "fail"])
async def test_a_404_that_every_engine_gives_is_the_clients_mistake(world: Any, fallback: str) -> None:
    lost = reply({"error": {"message": "the model does not exist", "code": 404}}, 404)
    w = await offloading(world, "mooncake_store", lost, lost, failure__offload_fallback=fallback)
    w.engines[2].behaviour = lost
    response = await w.ask(prompt=PROMPT)
    receipt = await w.receipt(response)
    assert [response.status_code, receipt["result"]] == [404, "client_error"]
    assert failures(w) == [0, 0, 0]


ONE_TOKEN = stream([b'data: {"choices":[{"text":"w","finish_reason":"length"}]}\n\n', b"data: [DONE]\n\n"])


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(
    ("status", "result", "counted"), [(400, "client_error", 0), (503, "refused", 0), (500, "failed_before_content", 1)]
)
async def test_a_refusal_by_a_decoder_is_passed_on_before_the_first_token_or_ends_the_stream(
    world: Any, is_early: bool, status: int, result: str, counted: int
) -> None:
    refusal = reply({"error": {"message": "no", "code": status}}, status)

    async def late(engine: Any, request: Any, writer: Any) -> None:
        await asyncio.sleep(0.3)
        await (ONE_TOKEN if is_early else refusal)(engine, request, writer)

    rules = {"failure__retries": 0, "failure__offload_fallback": "fail"}
    w = await offloading(world, "neuron", late if is_early else ONE_TOKEN, **rules)
    w.engines[1].behaviour = refusal if is_early else late
    response = await w.ask(prompt=PROMPT, stream=True)
    receipt = await w.receipt(response)
    if is_early:
        assert [response.status_code, receipt["result"]] == [502 if status == 500 else status, result]
    else:
        after = result if status == 400 else "failed_after_content"
        assert [receipt["result"], b'"error"' in response.content] == [after, True]
        counted = int(status != 400)
    assert failures(w)[1] == counted


@pytest.mark.parametrize(("prefills", "decoders"), [(1, 2), (2, 2), (2, 1)])
async def test_a_failing_decode_only_instance_is_replaced_and_counted(world: Any, prefills: int, decoders: int) -> None:
    dead, served = reply(DEAD, 500), reply({**ANSWER, "usage": None})
    w = await offloading(world, "mooncake_store", *[served] * (prefills + decoders - 1))
    w.engines[-1].behaviour = served
    w.published.fleet(
        *(
            entry(f"d-{place}", made.url, connector="mooncake_store", role="decode" if place >= prefills else "prefill")
            for place, made in enumerate(w.engines)
        )
    )
    pool = w.router.pools.get("demo")
    await w.until(lambda: list(pool.endpoints)[:1] == ["d-0"] and len(pool.endpoints) == len(w.engines), "the roles")
    first = w.engines[prefills]
    first.behaviour = dead
    results = [receipt["result"] for receipt in await until_asked(w, first)]
    assert first.received
    assert set(results) <= ({"served"} if decoders > 1 else {"failed_before_content", "refused"})
    assert pool.endpoints[f"d-{prefills}"].breaker.failures == len(first.received)
    assert sum(one.breaker.failures for one in pool.endpoints.values()) == len(first.received)


async def test_a_prefill_that_rejects_a_client_of_weir_for_its_key_is_at_fault(world: Any) -> None:
    w = await offloading(world, "mooncake_store", reply({"error": "Unauthorized"}, 401))
    w.published.keys(key_entry(ALICE), required=("*",))
    await w.until(lambda: w.router.pools.auth.ring and w.router.pools.auth.ring.required_everywhere, "keys")
    receipt = await w.receipt(await w.ask(prompt=PROMPT, headers=bearer(ALICE)))
    assert (receipt["result"], receipt["offload"], failures(w)) == ("served", "fallback", [1, 0])
