"""An error within an answer of status 200 is judged like an answer of the error's own status."""

import pytest

from router.contract.net import whereabouts
from router.tests.conftest import entry
from router.tests.engine import reply, stream
from router.tests.test_outcomes import BODIES, CHAT, MESSAGES, content, failure, started

DOUBTFUL = (401, 402, 403, 404)
CASES = [(path, streamed, code) for path in BODIES for streamed in (False, True) for code in DOUBTFUL]
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def refuses(path, streamed, error):
    return stream([*started(path), failure(path, error)]) if streamed else reply({"error": error})


def failures(w):
    return [one.breaker.failures for one in w.router.pools.get("demo").endpoints.values()]


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize(("path", "streamed", "code"), CASES)
async def test_a_refusal_by_every_engine_blames_none(world, path, streamed, code, engines):
    w = await world(*[refuses(path, streamed, {"message": "not this", "code": code})] * engines)
    response = await w.ask(path, stream=streamed, **BODIES[path])
    assert (response.status_code, "not this" in response.text) == (code, True)
    receipt = await w.receipt(response)
    assert [receipt[key] for key in ("outcome", "result", "fault")] == ["client_error", "client_error", "client"]
    assert failures(w) == [0] * engines
    assert [len(one.received) for one in w.engines] == [1] * engines


@pytest.mark.parametrize(("path", "streamed", "code"), CASES)
async def test_an_engine_that_refuses_is_at_fault_if_another_engine_serves_the_request(world, path, streamed, code):
    w = await world(refuses(path, streamed, {"message": "not this", "code": code}), None)
    response = await w.ask(path, stream=streamed, **BODIES[path])
    assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    assert failures(w) == [1, 0]


@pytest.mark.parametrize("code", DOUBTFUL)
@pytest.mark.parametrize("path", BODIES)
async def test_a_refusal_after_content_is_the_engines(world, path, code):
    w = await world(stream([*started(path), content(path), failure(path, {"message": "gone", "code": code})]))
    receipt = await w.receipt(await w.ask(path, stream=True, **BODIES[path]))
    assert [receipt[key] for key in ("result", "fault")] == ["failed_after_content", "engine"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("code", TYPES)
async def test_a_type_names_a_status_where_no_code_does(world, code, streamed):
    w = await world(refuses(MESSAGES, streamed, {"type": TYPES[code], "message": "not this"}))
    response = await w.ask(MESSAGES, stream=streamed, **BODIES[MESSAGES])
    assert (response.status_code, failures(w)) == (code, [0])


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_refusal_of_the_pools_engine_key_is_never_the_clients(world, monkeypatch, path, streamed, code):
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)
    w = await world(refuses(path, streamed, {"message": "who?", "code": code}))
    w.published.fleet(entry("demo-0", w.engines[0].url, engine_key="env:QWEN_API_KEY"))
    await w.until(lambda: w.router.pools.get("demo").endpoints["demo-0"].engine_key, "the key is published")
    response = await w.ask(path, stream=streamed, **BODIES[path])
    assert (response.status_code, f"demo-0 answered {code} to its engine key" in response.text) == (502, True)
    assert (await w.receipt(response))["fault"] == "engine"
    assert failures(w) == [1]


CUDA = "why does CUDA error 700 mean an illegal memory access"
ASKED = {
    path: {name: [{"role": "user", "content": CUDA}] if name == "messages" else CUDA for name in ("messages", "input")}
    | {"prompt": CUDA, "max_tokens": 9}
    for path in (*BODIES, "/v1/embeddings")
}
OF_REQUEST = (400, 413, 422)
EITHER = [(path, streamed, code) for path in BODIES for streamed in (False, True) for code in OF_REQUEST]
EITHER += [("/v1/embeddings", False, code) for code in OF_REQUEST]


def outcome(receipt):
    return [receipt[key] for key in ("result", "fault")]


@pytest.mark.parametrize(("path", "streamed", "code"), EITHER)
async def test_an_engine_that_quotes_the_request_in_an_error_is_not_blamed(world, path, streamed, code):
    error = {"message": f"no such role: {CUDA!r}", "type": "BadRequestError", "code": code}
    w = await world(refuses(path, streamed, error))
    response = await w.ask(path, stream=streamed, **ASKED[path])
    assert (response.status_code, "no such role" in response.text) == (code, True)
    assert outcome(await w.receipt(response)) == ["client_error", "client"]
    if streamed:
        w.engines[0].behaviour = stream([*started(path), content(path), failure(path, error | {"code": 400})])
        response = await w.ask(path, stream=True, **ASKED[path])
        assert outcome(await w.receipt(response)) == ["client_error", "client"]
    assert failures(w) == [0]


@pytest.mark.parametrize(("path", "streamed", "code"), EITHER)
async def test_an_error_that_blames_the_engine_is_the_engines_whatever_its_code(world, path, streamed, code):
    error = {"message": "CUDA error: an illegal memory access", "type": "BadRequestError", "code": code}
    w = await world(refuses(path, streamed, error), failure__breaker_failures=9)
    for said in (refuses(path, streamed, error), reply({"error": error}, code)):
        w.engines[0].behaviour = said
        response = await w.ask(path, stream=streamed, **BODIES.get(path, {"input": "x"}))
        assert (response.status_code, "CUDA error" in response.text) == (502, True)
        assert outcome(await w.receipt(response)) == ["failed_before_content", "engine"]
    assert failures(w) == [2]
    if streamed:
        w.engines[0].behaviour = stream([*started(path), content(path), failure(path, error)])
        response = await w.ask(path, stream=True, **BODIES[path])
        assert outcome(await w.receipt(response)) == ["failed_after_content", "engine"]


@pytest.mark.parametrize(
    ("message", "result", "reason"),
    [
        ("who?", "failed_after_content", "its engine key"),
        ("CUDA error: an illegal memory access", "failed_after_content", "CUDA error"),
        (CUDA, "client_error", CUDA),
    ],
)
async def test_a_large_whole_answer_with_an_error_is_judged_like_a_small_one(
    world, monkeypatch, message, result, reason
):
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)
    code = 401 if message == "who?" else 400
    w = await world(reply({"padding": "w" * (3 << 20), "error": {"message": message, "code": code}}))
    w.published.fleet(entry("demo-0", w.engines[0].url, engine_key="env:QWEN_API_KEY"))
    await w.until(lambda: w.router.pools.get("demo").endpoints["demo-0"].engine_key, "the key is published")
    receipt = await w.receipt(await w.ask(CHAT, **ASKED[CHAT]))
    assert (receipt["result"], reason in receipt["error"]) == (result, True)
    assert failures(w) == [result != "client_error"]
