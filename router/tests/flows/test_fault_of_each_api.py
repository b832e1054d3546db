"""Each failure, in every API and flow, is attributed to the client, to one engine or to the request."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from router.contract.connectors import AT_ONCE, CONNECTORS, NEURON, NIXL, NONE
from router.request.offload import PrefillBroken
from router.telemetry import receipts
from router.tests.conftest import entry
from router.tests.engine import Behaviour, Engine, Received, Writer, hang_up, reply, stream, write_head
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
Cell = tuple[Any, int | str, str]  # (numbers of the failing engines, status or name in LIES, expected result)
CELLS: list[Cell] = [
    (ALL, 400, "client_error"),
    (ALL, 404, "client_error"),
    (ALL, 500, "failed_alike"),
    (ALL, 503, "refused"),
    (ALL, "closes", "failed_alike"),
    ((0,), 404, "served"),
    ((0,), 503, "served"),
    ((2,), 500, "served"),
]
LYING: list[Cell] = [
    *(((one,), lie, "served") for one in (0, 2) for lie in ("is dead", "is no answer", "closes half-way")),
    ((2,), "is whole", "served"),
]
CROSSED: list[Cell] = [(one_of_each, 500, "served") for one_of_each in ((0, 3), (1, 2))]  # after a successful prefill
DIVIDED: list[Cell] = [
    (PREFILLS, 400, "client_error"),
    (PREFILLS, 500, "failed_alike"),
    (PREFILLS, 503, "refused"),
    (DECODERS, 500, "failed_alike"),
    (DECODERS, 503, "refused"),
]


def honest(path: str, document: dict[str, Any]) -> Any:
    """Answer completely; the answer to a prefill also contains the location of its KV."""
    answer = json.loads(plans.whole(path, plans.GOOD))
    if (document.get("kv_transfer_params") or {}).get("do_remote_decode"):
        answer["kv_transfer_params"] = BLOCKS
    if (document.get("disaggregated_params") or {}).get("request_type") == "context_only":
        answer["choices"][0] |= {"disaggregated_params": PARAMS, "finish_reason": "length"}
    return answer


async def serves(engine: Engine, request: Received, writer: Writer) -> None:
    if request.method == "GET":  # the engine's bootstrap server
        behaviour = reply({"0": {"engine_id": "e"}})
    elif request.document.get("stream"):
        behaviour = stream([plans.event(request.target, kind, (9, 3)) + b"\n\n" for kind in plans.HONEST])
    else:
        behaviour = reply(honest(request.target, request.document))
    await behaviour(engine, request, writer)


async def half(engine: Engine, request: Received, writer: Writer) -> None:
    write_head(writer, 200, "content-type: application/json", "content-length: 1000")
    writer.write(b'{"id": "half')
    await writer.drain()
    writer.close()


async def never_streams(engine: Engine, request: Received, writer: Writer) -> None:
    await reply(honest(request.target, request.document))(engine, request, writer)


LIES: dict[str, Behaviour] = {
    "is whole": never_streams,  # this lie needs a streamed answer
    "closes": hang_up,
    "closes half-way": half,
    "is dead": reply({"error": {"message": "EngineCore is dead", "code": 500}}),
    "is no answer": reply("no"),
}


def fails(how: int | str) -> Behaviour:
    failing = LIES[how] if isinstance(how, str) else reply({"error": {"message": "it says", "code": how}}, how)

    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        await (serves if request.method == "GET" else failing)(engine, request, writer)

    return behave


async def built(world: Any, kv: str) -> Any:
    """Build two prefill and two decode engines; without a connector, build four engines that do both."""
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
    """Record the receipts of requests as they end."""
    found: list[dict[str, Any]] = []
    ended: Callable[[Any], None] = recorder.ended

    def note(call: Any) -> None:
        found.append(receipts.receipt(call, "r"))
        ended(call)

    recorder.ended = note
    return found


@pytest.mark.parametrize("kv", [NONE, *CONNECTORS])
async def test_every_api_attributes_a_failure_to_its_cause(world: Any, kv: str) -> None:
    await walk(world, kv)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv", "mend", "without"),
    [
        ("nixl", "router.flows.prefill._error_in", lambda raw: None),
        (NONE, "router.contract.answer.verdict.DOUBTFUL", frozenset()),
        ("nixl", "router.flows.prefill.PrefillBusy", PrefillBroken),
    ],
)
async def test_the_matrix_fails_without_a_fix(world: Any, monkeypatch: Any, kv: str, mend: str, without: Any) -> None:
    monkeypatch.setattr(mend, without)
    with pytest.raises(AssertionError):
        await walk(world, kv)


async def walk(world: Any, kv: str) -> None:
    w = await built(world, kv)
    found = noted(w.router.recorder)
    if kv == NONE:
        paths, cells = list(BODIES), CELLS
    else:
        paths = [path for path in BODIES if path in (CONNECTORS[kv].api_paths or BODIES) and path not in NOT_OFFLOADED]
        paths = paths if kv == NIXL or len(paths) == 2 else paths[::3]  # one streamed path and one unstreamed path
        cells = CELLS + DIVIDED + LYING + ([] if kv in AT_ONCE else CROSSED)
    for path in paths:
        for cell in cells if BODIES[path].get("stream") else [cell for cell in cells if cell[1] != "is whole"]:
            for place, one in enumerate(w.engines):
                one.behaviour = fails(cell[1]) if place in cell[0] else serves
                one.received.clear()
            for _ in range(len(ALL) if cell[2] == "served" else 1):  # until an engine that fails has been chosen
                if not any(w.engines[place].received for place in cell[0]):
                    await check(w, found, kv, path, cell)


async def check(w: Any, found: list[dict[str, Any]], kv: str, path: str, cell: Cell) -> None:
    (failing, how, result), count = cell, len(found) + 1
    breakers = [one.breaker for one in w.router.pools.get("demo").endpoints.values()]
    before = [one.failures for one in breakers]
    response = await w.client.post(path, json={"model": "llama", **BODIES[path], "user": f"user {count}"})
    await w.until(lambda: len(found) == count, "receipt")
    what = f"{path}, {how} of {list(failing)}: {response.text[:200]}"
    # Once the prefill's answer has sent the first token, a decoder's failure ends the stream.
    too_late = kv == NEURON and BODIES[path].get("stream") and how in LIES and failing == (2,)
    assert found[-1]["result"] in ({result, "failed_after_content"} if too_late else {result}), what
    assert ("retry-after" in response.headers) == (result == "refused"), what
    asked = [sum(request.method == "POST" for request in one.received) for one in w.engines]
    if (failing, how) == (PREFILLS, 503):
        assert sum(asked[:2]) == 2, f"busy ones are asked once: {what}"
    after = [one.failures for one in breakers]
    if found[-1]["result"] != "served":  # otherwise the client or nobody is at fault
        assert too_late or all(now <= then for now, then in zip(after, before, strict=True)), what
    elif how in LIES and asked[failing[0]]:
        assert after[failing[0]] > before[failing[0]], f"not counted: {what}"
