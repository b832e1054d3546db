"""The result of a request is what its answer says, in every API, streamed or not."""

import asyncio
import gzip
import itertools
import json
import random

import pytest

from router.pool.health import failure_attribution
from router.tests.conftest import entry
from router.tests.engine import events, first_then_wait, hang_up, reply, stream, write_head
from router.tests.liar import plans

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {},
    MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
    RESPONSES: {"input": "x"},
}
DEAD = {"message": "EngineCore is dead", "type": "InternalServerError", "code": 500}
TOO_LONG = {"message": "too long", "type": "BadRequestError", "code": 400}


def event(document, name=""):
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(document).encode() + b"\n\n"


def started(path):
    """Return the events before the content."""
    return {
        CHAT: [event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})],
        COMPLETIONS: [event({"choices": [{"text": ""}]})],
        MESSAGES: [event({"type": "message_start", "message": {"usage": {"input_tokens": 9}}}, "message_start")],
        RESPONSES: [event({"type": "response.created", "response": {"status": "in_progress"}}, "response.created")],
    }[path]


def content(path):
    return {
        CHAT: event({"choices": [{"delta": {"content": "w"}}]}),
        COMPLETIONS: event({"choices": [{"text": "w"}]}),
        MESSAGES: event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "w"}}),
        RESPONSES: event({"type": "response.output_text.delta", "delta": "w"}),
    }[path]


def failure(path, error):
    return {
        CHAT: event({"error": error}),
        COMPLETIONS: event({"error": error}),
        MESSAGES: event({"type": "error", "error": error}, "error"),
        RESPONSES: event({"type": "response.failed", "response": {"status": "failed", "error": error}}),
    }[path]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_error_of_the_engine_before_the_content_is_served_elsewhere(world, path, streamed):
    dead = stream([*started(path), failure(path, DEAD)]) if streamed else reply({"error": DEAD})
    w = await world(dead, None, failure__breaker_failures=2)
    for _ in range(5):
        response = await w.ask(path, stream=streamed, **BODIES[path])
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
        assert b"EngineCore" not in response.content
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "open"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("ends", [[], [*[b": ping\n\n"] * 40, b"data: [DONE]\n\n"]])
async def test_an_engines_error_after_the_content_is_passed_on_and_counted(world, path, ends):
    w = await world(stream([*started(path), content(path), failure(path, DEAD), *ends], pause_s=0.002))
    response = await w.ask(path, stream=True, **BODIES[path])
    assert b"EngineCore is dead" in response.content
    receipt = await w.receipt(response)
    assert [receipt[key] for key in ("outcome", "result", "fault")] == ["error", "failed_after_content", "engine"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_clients_mistake_inside_an_answer_is_attributed_to_the_client(world, path, streamed):
    wrong = stream([*started(path), failure(path, TOO_LONG)]) if streamed else reply({"error": TOO_LONG})
    w = await world(wrong, failure__breaker_failures=1)
    response = await w.ask(path, stream=streamed, **BODIES[path])
    assert (response.status_code, response.json()["error"]["message"].endswith("too long")) == (400, True)
    receipt = await w.receipt(response)
    assert [receipt[key] for key in ("outcome", "fault")] == ["client_error", "client"]
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "closed"


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_without_its_last_event_is_incomplete_and_reported_as_such(world, path):
    w = await world(stream([*started(path), content(path)]))
    response = await w.ask(path, stream=True, **BODIES[path])
    assert b"ended without its last event" in response.content
    receipt = await w.receipt(response)
    assert [receipt[key] for key in ("outcome", "result")] == ["error", "failed_after_content"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_without_any_content_does_not_count_as_an_answer(world, path):
    ends = {CHAT: [b"data: [DONE]\n\n"], MESSAGES: [event({"type": "message_stop"})]}.get(path, [])
    w = await world(stream([*started(path), *ends]), failure__retries=0)
    response = await w.ask(path, stream=True, **BODIES[path])
    assert (response.status_code, response.headers["content-type"]) == (502, "application/json")


async def test_a_request_that_every_engine_answers_with_500_goes_to_two_and_shuts_none_out(world):
    w = await world(*[reply({"error": DEAD}, 500)] * 3, failure__breaker_failures=1)
    response = await w.ask()
    assert (response.status_code, response.headers["x-should-retry"]) == (500, "false")
    error = response.json()["error"]
    assert (error["code"], "EngineCore is dead" in error["message"]) == ("failed_alike", True)
    assert "retry-after" not in response.headers
    receipt = await w.receipt(response)
    assert [receipt[key] for key in ("outcome", "result", "fault")] == ["client_error", "failed_alike", "client"]
    assert [attempt["result"] for attempt in receipt["attempts"]] == ["failed_before_content", "failed_alike"]
    assert {one.breaker.state for one in w.router.pools.get("demo").endpoints.values()} == {"closed"}


async def test_engines_that_fail_every_request_are_eventually_blamed(world):
    w = await world(*[reply({"error": DEAD}, 500)] * 3, failure__breaker_failures=1)
    outcomes = [(await w.receipt(await w.ask()))["outcome"] for _ in range(12)]
    assert outcomes[0] == "client_error"
    assert outcomes[-1] == "error"
    states = [one.breaker.state for one in w.router.pools.get("demo").endpoints.values()]
    assert states.count("closed") == 2, "one client shuts out one instance"


def breaking(path):
    return stream([*started(path), content(path), failure(path, DEAD)])


async def asked_by(w, name):
    response = await w.ask(CHAT, **BODIES[CHAT], stream=True, headers={"x-forwarded-for": name})
    return response.headers["x-weir-instance"], b"EngineCore" not in response.content


async def test_a_client_whose_requests_fail_everywhere_after_their_content_shuts_out_one_instance(world):
    w = await world(*[breaking(CHAT)] * 4, failure__breaker_failures=2, failure__breaker_open_s=60.0)
    for _ in range(20):
        await asked_by(w, "10.0.0.1")
    states = [one.breaker.state for one in w.router.pools.get("demo").endpoints.values()]
    assert sorted(states) == ["closed", "closed", "closed", "open"]
    for engine in w.engines:
        engine.behaviour = stream()
    assert {await asked_by(w, "10.0.0.2") for _ in range(6)} == {
        (f"demo-{number}", True) for number, state in enumerate(states) if state == "closed"
    }
    pool = w.router.pools.get("demo")
    by_state = {one.breaker.state: one for one in pool.endpoints.values()}
    accused = by_state["open"].breaker.opened_by
    pool.accused.add(accused)
    for tenant in ("another", accused):
        failure_attribution.failed(pool, by_state["closed"], tenant)
    assert by_state["closed"].breaker.state == "open", "requests of others fail there, too"


async def test_instances_that_fail_where_others_serve_the_same_client_are_all_shut_out(world):
    w = await world(breaking(CHAT), breaking(CHAT), None, None, failure__breaker_failures=2)
    while [one.breaker.state for one in w.router.pools.get("demo").endpoints.values()].count("open") < 2:
        await asked_by(w, "10.0.0.1")
    assert {await asked_by(w, "10.0.0.1") for _ in range(4)} == {("demo-2", True), ("demo-3", True)}


async def test_a_request_whose_engine_died_is_tried_on_one_more(world):
    w = await world(hang_up, hang_up, hang_up, hang_up, failure__retries=3)
    response = await w.ask()
    assert (response.status_code, "retry-after" in response.headers) == (502, False)
    assert sum(len(engine.received) for engine in w.engines) == 2


async def test_the_first_content_ends_the_prefill(world):
    w = await world(None)
    w.engines[0].script.append(stream([*started(RESPONSES), *[b": wait\n\n"] * 3, content(RESPONSES)], pause_s=0.05))
    response = await w.ask(RESPONSES, stream=True, input="x")
    receipt = await w.receipt(response)
    assert receipt["ttft_ms"] - receipt["first_byte_ms"] > 100  # there are four pauses of 50 ms between the two


@pytest.mark.parametrize("value", [1, 1.0, "true", "1", "on", "Yes"])
async def test_a_stream_is_recognised_however_the_client_spells_it(world, value):
    w = await world(stream())
    response = await w.ask(CHAT, stream=value, **BODIES[CHAT])
    assert w.engines[0].received[0].document["stream_options"] == {"include_usage": True}
    assert response.content == b"".join(events(usage=False))
    assert (await w.receipt(response))["output_tokens"] == 3


WHOLE = "application/json"


NONE = [
    *((200, WHOLE, body) for body in (b'{"choices": ', b"null", b"")),
    (200, "text/html", b"<html>busy</html>"),
    (200, "", json.dumps({"error": DEAD}).encode()),
    (200, "application/problem+json", b'{"type": "about:blank", "title": "dead", "status": 500}'),
    (204, WHOLE, b""),
    (200, WHOLE, b'{"type": ["x"], "error": {"code": {"of": "no known shape"}}}'),
    (200, WHOLE, b'{"success": false, "message": "the engine is dead"}'),
    (200, WHOLE, b'{"code": 500, "msg": "dead", "data": null}'),
    (200, WHOLE, b'{"data": [{"object": "embedding", "index": 0, "embedding": [null, null]}]}'),
    (200, WHOLE, b'{"results": [{"index": 0, "document": {"text": "fox"}, "relevance_score": null}]}'),
]
EMPTY_STREAMS = [
    [event({"detail": "the engine is dead"})],
    [event({"code": 500, "msg": "dead", "data": None})],
    [event({"success": False, "message": "dead"}), b"data: [DONE]\n\n"],
    [b"data: Internal Server Error\n\n"],
    [b"data: null\n\n"],
    [b"<html>busy</html>\n\n"],
    [b"retry: 100\n\n", b"id: 7\n\n"],
    [b'event: error\ndata: {"detail":\ndata: "dead"}\n\n'],
    [event({"choices": [{"index": 0, "finish_reason": {"type": "abort", "message": "gone"}}]})],
]


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_of_anything_but_an_answer_is_retried_elsewhere(world, path):
    streams = itertools.cycle([*EMPTY_STREAMS, *([*started(path), *parts] for parts in EMPTY_STREAMS)])

    async def hollow(engine, request, writer):
        await stream(next(streams))(engine, request, writer)

    w = await world(hollow, None, failure__breaker_failures=1_000)
    while len(w.engines[0].received) < 2 * len(EMPTY_STREAMS):
        response = await w.ask(path, **BODIES[path], stream=True)
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.failures == 2 * len(EMPTY_STREAMS)


@pytest.mark.parametrize("path", [*BODIES, "/v1/embeddings", "/v1/rerank"])
async def test_a_good_status_without_an_answer_is_retried_elsewhere(world, path):
    bodies = itertools.cycle(NONE)

    async def hollow(engine, request, writer):
        status, kind, body = next(bodies)
        write_head(writer, status, f"content-type: {kind}", f"content-length: {len(body)}")
        writer.write(body)
        await writer.drain()

    w = await world(hollow, None, failure__breaker_failures=len(NONE))
    while len(w.engines[0].received) < len(NONE):
        response = await w.ask(path, **BODIES.get(path, {}))
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    breaker = w.router.pools.get("demo").endpoints["demo-0"].breaker
    assert (breaker.failures, breaker.state) == (len(NONE), "open")


def compressed(path, streamed, kind, size=0):
    """Return a compressed answer."""
    parts = [*started(path), content(path), b"data: [DONE]\n\n"] if streamed else [plans.whole(path, plans.GOOD)]
    body = gzip.compress(b"".join(parts) + random.Random(0).randbytes(size))

    async def behave(engine, request, writer):
        lines = (f"content-type: {kind}", "content-encoding: gzip", f"content-length: {len(body)}")
        write_head(writer, 200, *lines)
        writer.write(body)
        await writer.drain()

    return behave


@pytest.mark.parametrize(
    ("path", "streamed", "kind"),
    [
        *((path, True, "text/event-stream") for path in BODIES),
        *((path, False, WHOLE) for path in (*BODIES, "/v1/embeddings", "/v1/rerank", "/v1/images/generations")),
        *((path, False, "application/octet-stream") for path in ("/pooling", "/v1/embeddings")),
        ("/v1/audio/speech", False, "audio/wav"),
        ("/v1/audio/transcriptions", False, "text/plain"),
    ],
)
@pytest.mark.parametrize("size", [0, 3 << 20])
async def test_an_answer_that_is_compressed_unrequested_is_retried_elsewhere(world, path, streamed, kind, size):
    w = await world(compressed(path, streamed, kind, size), None, failure__breaker_failures=2)
    for _ in range(4):
        response = await w.ask(path, **BODIES.get(path, {}), stream=streamed)
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "open"


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/v1/audio/speech", "text/html", b"<html>busy</html>"),
        ("/v1/images/generations", "text/html", b"<html>busy</html>"),
        ("/v1/audio/transcriptions", "text/html", b"<html>busy</html>"),
        ("/v1/audio/speech", "audio/wav", b""),
        (CHAT, "text/html", b"<html>" * (1 << 18)),
        ("/v1/embeddings", WHOLE, b"busy " * (1 << 18)),
    ],
)
async def test_a_page_in_place_of_sound_or_of_a_large_answer_is_retried_elsewhere(world, path, kind, body):
    async def paged(engine, request, writer):
        write_head(writer, 200, f"content-type: {kind}", f"content-length: {len(body)}")
        writer.write(body)
        await writer.drain()

    w = await world(paged, None, failure__breaker_failures=2)
    for _ in range(4):
        response = await w.ask(path, **BODIES.get(path, {}))
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "open"


async def test_a_large_answer_that_ends_with_its_connection_in_the_middle_is_an_error(world):
    async def cut(engine, request, writer):
        write_head(writer, 200, "content-type: application/json", "connection: close")
        writer.write(json.dumps({"data": [{"embedding": [0.5] * 600_000}]}).encode()[:-100])
        await writer.drain()
        writer.close()

    w = await world(cut)
    receipt = await w.receipt(await w.ask("/v1/embeddings"))
    assert [receipt[key] for key in ("outcome", "result")] == ["error", "failed_after_content"]


@pytest.mark.parametrize("path", [*BODIES, "/v1/embeddings", "/v1/rerank"])
async def test_an_unrequested_stream_is_retried_elsewhere(world, path):
    parts = [*started(path), content(path), b"data: [DONE]\n\n"] if path in BODIES else events()
    w = await world(stream(parts), None, failure__breaker_failures=2)
    for given in (None, False, 0):
        body = BODIES.get(path, {}) | ({} if given is None else {"stream": given})
        response = await w.ask(path, **body)
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
        assert response.headers["content-type"] == "application/json"
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "open"


async def test_a_stream_that_every_engine_sends_unrequested_is_an_error_that_names_the_cause(world):
    w = await world(stream())
    response = await w.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_failed")
    assert "a stream where a whole one was asked for" in response.json()["error"]["message"]
    told = stream([failure(CHAT, TOO_LONG)])
    w.engines[0].behaviour = told
    assert (await w.ask(CHAT, **BODIES[CHAT])).status_code == 400


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("size", [1, 3 << 20])
async def test_a_whole_answer_in_place_of_a_stream_is_retried_elsewhere(world, path, size):
    whole = json.loads(plans.whole(path, plans.GOOD)) | {"metadata": "w" * size}
    w = await world(reply(whole), None, failure__breaker_failures=2)
    for value in (True, 1, "yes"):
        response = await w.ask(path, **BODIES[path], stream=value)
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
        assert response.headers["content-type"].startswith("text/event-stream")
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "open"
    receipt = await w.receipt(await w.ask(path, **BODIES[path], stream=True))
    assert (receipt["outcome"], receipt["stream"]) == ("ok", True)


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.parametrize("path", BODIES)
async def test_a_pool_that_never_streams_reports_it_and_continues_with_whole_answers(world, path, engines):
    whole = reply(json.loads(plans.whole(path, plans.GOOD)))
    w = await world(*[whole] * engines, failure__breaker_failures=2)
    for client in range(6):
        response = await w.ask(path, **BODIES[path], stream=True, headers={"x-forwarded-for": f"10.0.0.{client}"})
        assert (response.status_code, response.headers["x-should-retry"]) == (501, "false")
        assert "whole where a stream was asked for" in response.json()["error"]["message"]
        receipt = await w.receipt(response)
        assert [receipt[name] for name in ("outcome", "fault")] == ["client_error", "client"]
        assert (await w.ask(path, **BODIES[path])).status_code == 200
    assert {one.breaker.state for one in w.router.pools.get("demo").endpoints.values()} == {"closed"}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/tokenize", "/v1/images/generations"])
async def test_an_api_without_streams_may_be_asked_for_a_stream(world, path):
    w = await world(reply({"object": "list", "data": [], "count": 1}))
    assert (await w.ask(path, stream=True)).status_code == 200


async def test_an_image_may_arrive_in_parts_and_forms_and_speech_request_them_in_their_own_ways(world):
    w = await world(stream())
    response = await w.ask("/v1/audio/speech", input="hello", stream_format="sse")
    assert (response.status_code, response.content) == (200, b"".join(events(usage=False)))


@pytest.mark.parametrize(("status", "streams"), [(503, False), (429, True)])
async def test_a_request_that_may_have_ended_an_engine_is_not_to_be_repeated_though_a_second_was_full(
    world, status, streams
):
    full = reply({"error": {"message": "full"}}, status, "retry-after: 7")
    turns = iter((hang_up, full))

    async def in_turn(*given):
        await next(turns)(*given)

    w = await world(in_turn, in_turn)
    response = await w.ask(stream=streams)
    assert (response.status_code, response.headers["x-should-retry"]) == (502, "false")
    assert "retry-after" not in response.headers
    error = response.json()["error"]
    assert (error["code"], "its process may have ended" in error["message"]) == ("upstream_failed", True)
    receipt = await w.receipt(response)
    assert (receipt["result"], receipt["attempts"][1]["result"]) == ("failed_before_content", "refused")


async def test_a_stream_that_was_abandoned_before_its_usage_does_not_count_as_served(world):
    gave_up = event({"choices": [{"delta": {}, "finish_reason": "abort"}]})
    usage = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    w = await world(stream([*started(CHAT), content(CHAT), gave_up, usage, b"data: [DONE]\n\n"]))
    receipt = await w.receipt(await w.ask(CHAT, stream=True, **BODIES[CHAT]))
    assert [receipt[key] for key in ("outcome", "result")] == ["error", "failed_after_content"]


async def test_a_stream_with_a_known_length_that_lacks_its_last_event_is_an_error(world):
    async def of_a_length(engine, request, writer):
        parts = b"".join([*started(CHAT), content(CHAT)])
        write_head(writer, 200, "content-type: text/event-stream", f"content-length: {len(parts)}")
        writer.write(parts)
        await writer.drain()

    w = await world(of_a_length)
    response = await w.ask(CHAT, stream=True, **BODIES[CHAT])
    assert "content-length" not in response.headers
    assert b"ended without its last event" in response.content


async def test_the_attempt_of_a_client_that_left_in_the_middle_is_not_counted_as_served(world):
    w = await world(first_then_wait)
    body = {"model": "llama", "stream": True, **BODIES[CHAT]}
    async with w.client.stream("POST", CHAT, json=body) as response:
        await anext(response.aiter_bytes())
    receipt = await w.receipt(response)
    assert (receipt["result"], receipt["attempts"][0]["result"]) == ("cancelled", "cancelled")


async def test_an_instance_that_one_client_shut_out_serves_the_others_when_no_other_is_left(world):
    """demo-0 fails for every client, demo-1 for a single one."""
    w = await world(reply({"error": DEAD}, 500), None, failure__breaker_failures=1, failure__breaker_open_s=60.0)
    pool = w.router.pools.get("demo")
    pool.endpoints["demo-1"].breaker.failed(asyncio.get_running_loop().time(), 1, "key mallory")
    pool.endpoints["demo-1"].touch()
    answers = [await w.ask() for _ in range(4)]
    assert {(answer.status_code, answer.headers["x-weir-instance"]) for answer in answers} == {(200, "demo-1")}


@pytest.mark.parametrize("connector", ["nixl", "mooncake_store"])
async def test_a_prefill_that_fails_inside_a_status_of_200_counts_unless_the_client_is_at_fault(world, connector):
    w = await world(None, None, flow__heavy="offload")
    roles = {"demo-0": "prefill", "demo-1": "decode"}
    urls = [engine.url for engine in w.engines]
    w.published.fleet(
        *(entry(name, url, role=roles[name], connector=connector) for name, url in zip(roles, urls, strict=True))
    )
    liar = w.router.pools.get("demo").endpoints["demo-0"]
    await w.until(lambda: liar.role == "prefill")
    for error, status in ((DEAD, 502), (TOO_LONG, 400)):
        w.engines[0].behaviour = reply({"error": error})
        response = await w.ask(prompt="hello " * 4000)
        assert (response.status_code, liar.breaker.failures) == (status, 1)
        assert error["message"] in response.text
    assert not w.engines[1].received


async def test_an_engine_that_quotes_a_wrong_request_blames_itself_with_none_of_its_words(world):
    async def quotes(engine, request, writer):
        await reply({"error": {"message": f"input: {request.document['prompt']}", "code": 400}}, 400)(
            engine, request, writer
        )

    w = await world(quotes, quotes)
    assert (await w.ask(prompt="how does CUDA run out of memory?")).status_code == 400
    assert sorted(len(engine.received) for engine in w.engines) == [0, 1]
