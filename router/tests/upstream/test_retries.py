"""An attempt that fails before the client has received a byte is retried elsewhere; after that, never."""

import json

import httpx
import pytest

from router.tests.conftest import entry
from router.tests.engine import break_off, events, hang, hang_up, reply, stream


async def test_an_engine_that_dies_before_its_first_byte_is_replaced_by_another(world):
    w = await world(hang_up, None)
    for _ in range(4):
        response = await w.ask()
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")


async def test_an_unreachable_engine_is_replaced_by_another(world):
    w = await world(None)
    w.published.fleet(entry("demo-0", "http://127.0.0.1:9"), entry("demo-1", w.engines[0].url))
    await w.until(lambda: len(w.router.pools.get("demo").endpoints) == 2)
    for _ in range(3):
        assert (await w.ask()).headers["x-weir-instance"] == "demo-1"


async def test_a_stream_that_breaks_before_its_first_event_is_retried_elsewhere(world):
    w = await world(break_off([]), None)
    for _ in range(2):
        response = await w.ask(stream=True)
        assert response.headers["x-weir-instance"] == "demo-1"
        assert response.content.endswith(b"data: [DONE]\n\n")


async def test_a_whole_answer_that_breaks_in_the_middle_is_repeated_elsewhere(world):
    async def half(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it")
        await writer.drain()
        writer.close()

    w = await world(half, None)
    for _ in range(2):
        response = await w.ask()
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_an_engine_that_is_full_or_failing_is_replaced_by_another(world, status):
    w = await world(reply({"error": "no"}, status), None)
    for _ in range(2):
        response = await w.ask()
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")


@pytest.mark.parametrize("status", [400, 413, 414, 415, 431])
async def test_an_error_of_the_client_is_passed_on_and_not_repeated(world, status):
    w = await world(reply({"error": {"message": "max_tokens is too large"}}, status), None)
    answers = [await w.ask() for _ in range(2)]
    refused = next(answer for answer in answers if answer.headers["x-weir-instance"] == "demo-0")
    assert refused.status_code == status
    assert refused.json() == {"error": {"message": "max_tokens is too large"}}
    assert len(w.engines[0].received) == len(w.engines[1].received) == 1


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 407, 409, 410, 421, 422, 424, 425, 451, 499, 501])
async def test_a_request_refused_by_one_engine_and_served_by_another_counts_as_a_failure_of_the_first(world, status):
    w = await world(reply({"error": "no"}, status), None, failure__breaker_failures=2)
    for _ in range(6):
        response = await w.ask()
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "open"
    assert len(w.engines[0].received) == 2


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 407, 409, 410, 421, 422, 424, 425, 451, 499, 501])
async def test_a_request_refused_by_two_engines_is_the_clients_error_and_counts_against_neither(world, status):
    w = await world(*[reply({"error": "own words"}, status)] * 3, failure__breaker_failures=1)
    for _ in range(3):
        response = await w.ask()
        assert (response.status_code, response.json()) == (status, {"error": "own words"})
        receipt = await w.receipt(response)
        assert (receipt["outcome"], receipt["fault"], len(receipt["attempts"])) == ("client_error", "client", 2)
    assert {one.breaker.state for one in w.router.pools.get("demo").endpoints.values()} == {"closed"}


OF_ENGINES = [
    {"error": {"message": "CUDA error: an illegal memory access", "type": "BadRequestError", "code": 400}},
    {"object": "error", "message": "EngineCore encountered an issue.", "type": "BadRequestError", "code": 400},
    {"error": {"message": "it failed", "type": "InternalServerError", "code": 400}},
    {"error": {"message": "it failed", "code": 503}},
    {"detail": "Traceback (most recent call last)"},
]


async def test_an_engine_that_blames_itself_for_a_status_of_400_is_replaced_by_another(world):
    w = await world(None, None, failure__breaker_failures=1_000)
    w.engines[0].script += [reply(said, 400) for said in OF_ENGINES]
    while w.engines[0].script:
        assert (await w.ask()).status_code == 200
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.failures == len(OF_ENGINES)


@pytest.mark.parametrize("second", [400, 500])
async def test_a_refusal_in_which_two_engines_blame_themselves_is_the_requests_fault(world, second):
    w = await world(*[reply(OF_ENGINES[0], status) for status in (400, second)], failure__breaker_failures=1)
    receipt = await w.receipt(response := await w.ask())
    assert (response.json()["error"]["code"], "CUDA error" in response.text) == ("failed_alike", True)
    assert (receipt["outcome"], len(receipt["attempts"])) == ("client_error", 2)
    assert {one.breaker.state for one in w.router.pools.get("demo").endpoints.values()} == {"closed"}


async def test_an_engine_confirmed_by_another_is_not_shut_out_by_one_clients_mistakes(world):
    w = await world(reply({"error": "own words"}, 400), reply({"error": "own words"}, 400), failure__breaker_failures=2)
    pool = w.router.pools.get("demo")
    for _ in range(8):
        assert (await w.ask()).status_code == 400
        pool.endpoints["demo-1"].breaker.served()  # it serves other clients
    assert pool.endpoints["demo-0"].breaker.is_doubted
    assert (pool.endpoints["demo-0"].breaker.failures, pool.endpoints["demo-0"].breaker.state) == (0, "closed")


@pytest.mark.parametrize("status", [429, 503])
async def test_the_last_engines_own_error_is_passed_on(world, status):
    w = await world(reply({"error": "own words"}, status), reply({"error": "own words"}, status))
    response = await w.ask()
    assert response.status_code == status
    assert response.json() == {"error": "own words"}
    assert len(w.engines[0].received) == len(w.engines[1].received) == 1


async def test_retries_are_bounded_by_the_policy(world):
    w = await world(hang_up, hang_up, hang_up, hang_up, failure__retries=1)
    response = await w.ask()
    assert response.status_code == 502
    assert "retry-after" not in response.headers
    assert response.headers["x-should-retry"] == "false"
    assert sum(len(engine.received) for engine in w.engines) == 2


async def test_no_two_attempts_carry_the_same_request_id(world):
    w = await world(reply({}, 503), reply({}, 503), None)
    name = (await w.ask()).headers["x-request-id"]
    received = {request.headers["x-request-id"] for engine in w.engines for request in engine.received}
    assert received == {name, f"{name}-2", f"{name}-3"}


@pytest.mark.parametrize(
    ("engines", "code", "words"), [(1, "upstream_timeout", "1 s"), (2, "failed_alike", "it did not answer in time")]
)
async def test_a_silent_engine_is_abandoned(world, engines, code, words):
    w = await world(*[hang] * engines, failure__first_byte_timeout_s=1)
    response = await w.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (504, code)
    assert words in response.json()["error"]["message"]


async def test_a_stream_that_breaks_after_its_first_byte_ends_with_an_error_event_and_is_not_repeated(world):
    w = await world(break_off(events()[:2]), break_off(events()[:2]))
    response = await w.ask(path="/v1/chat/completions", stream=True)
    assert response.status_code == 200
    assert response.content.startswith(b"".join(events()[:2]))
    last = response.content.strip().rsplit(b"\n\n", 1)[-1]
    assert b'"code":"upstream_failed"' in last
    assert b"[DONE]" not in response.content
    assert sum(len(engine.received) for engine in w.engines) == 1


async def test_the_error_event_is_separate_when_the_stream_broke_inside_an_event(world):
    w = await world(break_off([events()[0] + b'data: {"choi']))
    response = await w.ask(stream=True, stream_options={"include_usage": True})
    assert b'data: {"choi\n\ndata: {"error"' in response.content


async def test_the_error_event_on_messages_has_anthropics_type(world):
    w = await world(break_off([b'data: {"type": "content_block_delta", "delta": {"text": "a"}}\n\n']))
    response = await w.ask(path="/v1/messages", stream=True)
    assert b'\n\nevent: error\ndata: {"type":"error","error":{"type":"api_error"' in response.content


async def test_the_error_event_on_responses_makes_openais_clients_raise(world):
    """Clients look for a member `error`; any other event ends their loop as if the answer were complete."""
    delta = b'data: {"type":"response.output_text.delta","delta":"a","sequence_number":%d}\n\n'
    w = await world(break_off([delta % 6, delta % 7]))
    response = await w.ask(path="/v1/responses", stream=True, input="hello")
    last = response.text.strip().rsplit("\n\n", 1)[-1]
    name, _, data = last.partition("\n")
    event = json.loads(data.removeprefix("data: "))
    assert (name, event["type"], event["sequence_number"]) == ("event: error", "error", 8)
    assert event["error"]["message"] == event["message"]
    assert event["error"]["code"] == event["code"] == "upstream_failed"
    assert event["param"] is None


async def test_an_answer_without_its_last_event_ends_with_the_same_error_event(world):
    delta = b'data: {"type":"response.output_text.delta","delta":"a","sequence_number": 3}\n\n'
    w = await world(stream([delta]))
    response = await w.ask(path="/v1/responses", stream=True, input="hello")
    event = json.loads(response.text.strip().rpartition("data: ")[2])
    assert event["error"]["code"] == "upstream_failed"
    assert event["sequence_number"] == 4


async def test_an_idle_connection_that_the_engine_has_closed_costs_no_retry(world):
    """The engine closes after each answer, and the router notices it only when it writes."""

    async def answer_and_close(engine, request, writer):
        await reply()(engine, request, writer)
        writer.close()

    w = await world(answer_and_close)
    for _ in range(10):
        assert (await w.ask()).status_code == 200
    receipt = await w.receipt(await w.ask())
    assert receipt["retries"] == 0


async def test_a_used_connection_that_closes_without_a_byte_is_replaced_on_the_same_instance(world):
    w = await world(None)
    await w.ask()
    w.engines[0].script.append(hang_up)
    response = await w.ask()
    assert response.status_code == 200
    assert w.engines[0].accepted == 2
    assert (await w.receipt(response))["retries"] == 0


@pytest.mark.slow
async def test_an_answer_that_is_not_http_is_a_failure_of_the_engine(world):
    async def garbage(engine, request, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        await writer.drain()

    async def endless_head(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000)
        await writer.drain()

    for behaviour in (garbage, endless_head):
        w = await world(behaviour)
        response = await w.ask()
        assert response.status_code == 502
        assert "not a valid HTTP answer" in response.json()["error"]["message"]


async def test_the_client_sees_that_a_large_answer_is_broken(world):
    async def half(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n[" + b"x" * 4_000_000)
        await writer.drain()
        writer.close()

    w = await world(half)
    with pytest.raises(httpx.RemoteProtocolError):
        await w.ask()
