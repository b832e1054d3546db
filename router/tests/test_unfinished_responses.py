"""A whole response that is still being generated is an answer only where the client asked for it in the background."""

import json

import pytest

from router.tests.engine import reply, write_head
from router.tests.test_errors_within_answers import failures
from router.tests.test_outcomes import BODIES, CHAT, RESPONSES

UNFINISHED = [(status, size) for status in ("queued", "in_progress") for size in (1, 3 << 20)]


def unfinished(status, size=1):
    return reply({"id": "resp_1", "object": "response", "status": status, "output": [], "instructions": "w" * size})


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_an_unfinished_response_is_retried_elsewhere(world, status):
    w = await world(unfinished(status), None)
    for background in (None, False, 0, "false"):
        body = BODIES[RESPONSES] | ({} if background is None else {"background": background})
        response = await w.ask(RESPONSES, **body)
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
        await w.ask(RESPONSES, input="x")  # the next turn of round robin
    assert failures(w)[0] > 1


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_a_large_unfinished_response_is_a_failure(world, status):
    w = await world(unfinished(status, 3 << 20))
    receipt = await w.receipt(await w.ask(RESPONSES, **BODIES[RESPONSES]))
    assert [receipt[key] for key in ("outcome", "fault")] == ["error", "engine"]
    assert failures(w) == [1]


@pytest.mark.parametrize(("status", "size"), UNFINISHED)
@pytest.mark.parametrize("background", [True, 1, "true"])
async def test_a_response_in_the_background_is_served_and_no_sign_of_progress(world, status, size, background):
    w = await world(unfinished(status, size))
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    endpoint.breaker.failed(0.0, 5, "somebody else")
    response = await w.ask(RESPONSES, **BODIES[RESPONSES], background=background)
    assert (response.status_code, response.json()["status"]) == (200, status)
    assert (await w.receipt(response))["result"] == "served"
    assert {tally.e2e.total for tally in w.router.recorder.tallies.values()} == {0.0}
    w.engines[0].behaviour = reply({"count": 1, "tokens": [1]})
    assert (await w.ask("/tokenize")).status_code == 200
    assert w.router.pools.get("demo").queue.drain.turn_s(0.0) is None
    assert (endpoint.breaker.failures, endpoint.progress._came, endpoint.unheld, endpoint.requests) == (1, False, 0, 0)


@pytest.mark.parametrize("error", [{"message": "dead", "code": 500}, {"message": "too long", "code": 400}])
async def test_an_error_in_place_of_a_response_in_the_background_is_an_error(world, error):
    w = await world(reply({"error": error}))
    response = await w.ask(RESPONSES, **BODIES[RESPONSES], background=True)
    assert response.status_code == error["code"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "charset", "size"),
    [
        *((path, "utf-16", 1) for path in (*BODIES, "/v1/embeddings")),
        *((CHAT, charset, 1) for charset in ("utf-16-le", "utf-16-be", "utf-32", "cp037")),
        *((CHAT, charset, 3 << 20) for charset in ("utf-16", "cp037")),
    ],
)
async def test_an_answer_that_is_not_utf_8_is_retried_elsewhere(world, path, charset, streamed, size):
    whole = json.dumps({"choices": [{"delta": {"content": "w" * size}, "finish_reason": "stop"}]})
    text = (f"data: {whole}\n\ndata: [DONE]\n\n" if streamed else whole).encode(charset)
    kind = "text/event-stream" if streamed else "application/json"

    async def behave(engine, request, writer):
        write_head(writer, 200, f"content-type: {kind}; charset={charset}", f"content-length: {len(text)}")
        writer.write(text)
        await writer.drain()

    w = await world(behave, None)
    response = await w.ask(path, stream=streamed, **BODIES.get(path, {}))
    assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    assert failures(w)[0] == 1


@pytest.mark.parametrize("size", [1, 3 << 20])
@pytest.mark.parametrize(("mark", "charset"), [(b"", "iso-8859-1"), (b"", "us-ascii"), (b"\xef\xbb\xbf", "utf-8")])
async def test_an_answer_in_utf_8_is_read_with_its_usage_whatever_charset_it_declares(world, mark, charset, size):
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    answer = {"choices": [{"text": "ä" * size, "index": 0, "finish_reason": "stop"}], "usage": usage}
    body = mark + json.dumps(answer, ensure_ascii=False).encode()

    async def behave(engine, request, writer):
        write_head(writer, 200, f"content-type: application/json; charset={charset}", f"content-length: {len(body)}")
        writer.write(body)
        await writer.drain()

    w = await world(behave)
    response = await w.ask()
    receipt = await w.receipt(response)
    assert (receipt["result"], receipt["output_tokens"], response.content) == ("served", 2, body)
