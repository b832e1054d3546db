"""Whose fault a failure is, in every API and through every flow: the client's, one engine's, or the request's."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from router.contract.connectors import CONNECTORS, NONE
from router.telemetry import receipts
from router.tests.conftest import entry
from router.tests.engine import Behaviour, Engine, Received, Writer, hang_up, reply, stream
from router.tests.flows.test_prefill_answers import PROMPT
from router.tests.flows.test_trtllm import PARAMS
from router.tests.liar import plans

CHAT = [{"role": "user", "content": PROMPT}]
BODIES: dict[str, dict[str, Any]] = {
    plans.CHAT: {"messages": CHAT, "stream": True},
    plans.COMPLETIONS: {"prompt": PROMPT},
    plans.MESSAGES: {"messages": CHAT, "max_tokens": 50, "stream": True},
    plans.RESPONSES: {"input": PROMPT},
    plans.EMBEDDINGS: {"input": PROMPT},
    plans.RERANK: {"query": PROMPT, "documents": ["a"]},
}
NOT_OFFLOADED = (plans.EMBEDDINGS, plans.RERANK)
BLOCKS = {"do_remote_prefill": True, "remote_engine_id": "x", "remote_block_ids": [1], "remote_host": "h"}
ALL, PREFILLS, DECODERS = range(4), (0, 1), (2, 3)
Cell = tuple[Any, int, str]  # numbers of the engines that fail, the status (0: they close), the result
CELLS: list[Cell] = [
    (ALL, 400, "client_error"),
    (ALL, 404, "client_error"),
    (ALL, 500, "failed_alike"),
    (ALL, 503, "refused"),
    (ALL, 0, "failed_alike"),
    ((0,), 404, "served"),
    ((0,), 503, "served"),
    ((2,), 500, "served"),
]
DIVIDED: list[Cell] = [
    (PREFILLS, 400, "client_error"),
    (PREFILLS, 500, "failed_alike"),
    (PREFILLS, 503, "refused"),
    (DECODERS, 500, "failed_alike"),
    (DECODERS, 503, "refused"),
]


def honest(path: str, document: dict[str, Any]) -> Any:
    """A whole answer; to a prefill, with the place of the KV."""
    answer = json.loads(plans.whole(path, plans.GOOD))
    if (document.get("kv_transfer_params") or {}).get("do_remote_decode"):
        answer["kv_transfer_params"] = BLOCKS
    if (document.get("disaggregated_params") or {}).get("request_type") == "context_only":
        answer["choices"][0] |= {"disaggregated_params": PARAMS, "finish_reason": "length"}
    return answer


async def serves(engine: Engine, request: Received, writer: Writer) -> None:
    if request.method == "GET":  # what its bootstrap server says
        behaviour = reply({"0": {"engine_id": "e"}})
    elif request.document.get("stream"):
        behaviour = stream([plans.event(request.target, kind, (9, 3)) + b"\n\n" for kind in plans.HONEST])
    else:
        behaviour = reply(honest(request.target, request.document))
    await behaviour(engine, request, writer)


def fails(status: int) -> Behaviour:
    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        failing = reply({"error": {"message": "it says", "code": status}}, status) if status else hang_up
        await (serves if request.method == "GET" else failing)(engine, request, writer)

    return behave


async def built(world: Any, kv: str) -> Any:
    """Two engines that prefill and two that decode; without a connector four that do both."""
    divided = kv != NONE
    rules = {"flow__heavy": "offload", "classes__heavy_new_tokens": 1000, "classes__warm_new_tokens": 100}
    rules |= {"strategy": "adaptive_v1"} if divided else {}
    w = await world(*[serves] * 4, failure__breaker_failures=1000, **rules)
    roles = ["prefill", "prefill", "decode", "decode"] if divided else ["both"] * 4
    more = [{"connector": kv, "kv": {"bootstrap": one.url}} if divided else {} for one in w.engines]
    made = zip(w.engines, roles, more, strict=True)
    w.published.fleet(*(entry(f"demo-{i}", one.url, role=role, **kept) for i, (one, role, kept) in enumerate(made)))
    pool = w.router.pools.get("demo")
    await w.until(lambda: [one.role for one in pool.endpoints.values()] == roles, "the roles")
    return w


def noted(recorder: Any) -> list[dict[str, Any]]:
    """Receipts, as requests end."""
    found: list[dict[str, Any]] = []
    ended: Callable[[Any], None] = recorder.ended

    def note(call: Any) -> None:
        found.append(receipts.receipt(call, "r"))
        ended(call)

    recorder.ended = note
    return found


@pytest.mark.parametrize("kv", [NONE, *CONNECTORS])
async def test_a_failure_is_the_fault_of_whoever_made_it_in_every_api(world: Any, kv: str) -> None:
    w = await built(world, kv)
    found, endpoints = noted(w.router.recorder), w.router.pools.get("demo").endpoints.values()
    paths = [path for path in BODIES if kv == NONE or path in (CONNECTORS[kv].api_paths or BODIES.keys())]
    number = 0
    for path in paths if kv == NONE else [path for path in paths if path not in NOT_OFFLOADED]:
        for failing, status, result in CELLS + (DIVIDED if kv != NONE else []):
            number += 1
            for place, one in enumerate(w.engines):
                one.behaviour = fails(status) if place in failing else serves
                one.received.clear()
            before = [one.breaker.failures for one in endpoints]
            body = {"model": "llama", **BODIES[path], "user": f"user {number}"}
            response = await w.client.post(path, json=body)
            await w.until(lambda number=number: len(found) == number, "receipt")
            what = f"{path}, {status} of {list(failing)}: {response.text[:200]}"
            assert found[-1]["result"] == result, what
            assert ("retry-after" in response.headers) == (result == "refused"), what
            asked = sum(request.method == "POST" for one in w.engines for request in one.received)
            assert asked <= 6, what
            if result != "served":  # nobody's fault, or the client's
                after = [one.breaker.failures for one in endpoints]
                assert all(now <= then for now, then in zip(after, before, strict=True)), what
