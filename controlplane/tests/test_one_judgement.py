"""A replay, a batch and a gateway judge every answer of an engine as the router's receipt does."""

import itertools
from typing import Any

import orjson
import pytest

from controlplane.evidence.experiments.replay.client import ReplayClient
from controlplane.evidence.experiments.replay.completions import PATH, body_of, ending_of
from controlplane.traffic.batches.lines import LineAnswer, meaning
from controlplane.traffic.batches.running import answer_of
from router.contract.answer import verdict
from router.contract.answer.verdict import VERDICTS
from router.flows import prefill
from router.tests.conftest import World, published, world  # noqa: F401  (fixtures)
from router.tests.engine import Behaviour, Engine, Received, Writer, reply, stream
from router.tests.flows.test_fault_of_each_api import BODIES, fails, noted
from router.tests.liar import plans
from router.tests.liar.plans import Plan
from router.tests.picker.asking import headers
from router.tests.picker.test_picking import Gateway

STATUSES = (400, 401, 404, 408, 413, 422, 429, 500, 501, 503)
BROKEN = ("closes", "closes half-way", "is dead", "is no answer", "is whole")
STREAMS = (
    ("begin", "error"),
    ("begin", "error_client"),
    ("error_busy",),
    ("begin", "text", "error"),
    ("begin", "text", "error_client"),
    ("begin", "text", "abort", "end"),
    ("begin", "text", "finish"),
    ("begin", "end"),
    ("begin", "error_named"),
    ("begin", "text", "alive", "error_named"),
    ("alive", "alive", "end"),
    ("begin", "thought", "finish", "usage", "end"),
    ("garbage",),
    plans.HONEST,
)
PAGES = tuple(Plan(page=name) for name in plans.PAGES)
OF_LINES = {"ok": "answered", "client_error": "failed", "error": "again", "refused": "later"}


def tells(plan: Plan) -> Behaviour:
    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        if request.document.get("stream") and not plan.page:
            behaviour = stream([plans.event(request.target, kind, (9, 3)) + b"\n\n" for kind in plan.events])
        else:
            body = plans.whole(request.target, plan)
            behaviour = reply(orjson.loads(body) if body.endswith(b"}") else body.decode())
        await behaviour(engine, request, writer)

    return behave


@pytest.mark.parametrize(
    "fallible",
    [STATUSES, BROKEN, [Plan(events=events) for events in STREAMS], PAGES],
    ids=["statuses", "broken answers", "streams", "pages"],
)
async def test_replays_lines_of_batches_and_prefills_end_as_the_receipt_says(world: Any, fallible: Any) -> None:  # noqa: F811
    w: World = await world(None, None, failure__breaker_failures=1000)
    found = noted(w.router.recorder)
    client = ReplayClient(str(w.client.base_url))
    for how in fallible:
        for one in w.engines:
            one.behaviour = tells(how) if isinstance(how, Plan) else fails(how)
        answer = await client.request("POST", PATH, body_of("llama", "hello", 9))
        await w.until(lambda: len(found) == 1, "receipt")
        assert ending_of(answer).outcome == found.pop()["outcome"], f"a replay, {how}"
        for path in (plans.CHAT, plans.RESPONSES, plans.EMBEDDINGS):
            whole = await w.client.post(path, json={"model": "llama", **BODIES[path], "stream": False})
            await w.until(lambda: len(found) == 1, "receipt")
            said, outcome = meaning(LineAnswer(whole.status_code, "r", whole.content), path), found.pop()["outcome"]
            assert said.outcome == OF_LINES[outcome], f"a line, {path}, {how}: {whole.text[:200]}"
            if isinstance(how, Plan):
                wrong = prefill._error_in(plans.whole(path, how), path)
                assert (wrong is None) == (outcome == "ok"), f"a prefill, {path}, {how}: {wrong}"
    client.close()


@pytest.mark.parametrize("second", [500, 503])
async def test_a_line_that_crashes_an_engine_and_fails_on_another_is_not_sent_again(
    world: Any,  # noqa: F811
    second: int,
) -> None:
    turns = itertools.cycle((fails("closes"), fails(second)))

    async def in_turn(engine: Engine, request: Received, writer: Writer) -> None:
        await next(turns)(engine, request, writer)

    w: World = await world(in_turn, in_turn)
    response = await w.client.post(plans.CHAT, json={"model": "llama", **BODIES[plans.CHAT], "stream": False})
    answer = answer_of(response, "r")
    assert (answer.status, meaning(answer, plans.CHAT).outcome) == (502, "failed")
    assert sum(len(one.received) for one in w.engines) == 2


async def test_outcomes_reported_by_a_gateway_are_judged_like_a_routers_own(world: Any) -> None:  # noqa: F811
    w: World = await world(None, None, failure__breaker_failures=1000)
    found, gateway = noted(w.router.recorder), Gateway(w)
    for status in (200, *STATUSES):
        asking, work = gateway.ask()
        await asking.answer()
        asking.say(headers({":status": str(status)}, kind=3), None)
        await work
        receipt, result = found.pop(), verdict.of_status(status)
        assert (receipt["result"], receipt["outcome"]) == (result, VERDICTS[result].label), status
