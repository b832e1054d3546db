"""The headers that the router adds, keeps and removes."""

import re

from router.tests.engine import reply


async def test_the_answer_names_its_instance_and_policy(world):
    w = await world(None)
    response = await w.ask()
    assert response.headers["x-weir-instance"] == "demo-0"
    assert response.headers["x-weir-class"] == "warm"
    assert response.headers["x-weir-policy"] == "1"
    assert response.headers["x-weir-flow"] == "colocated"


async def test_a_valid_request_id_is_returned_and_begins_the_id_sent_to_the_engine(world):
    w = await world(None)
    response = await w.ask(headers={"x-request-id": "abc-1.2:3_4"})
    assert response.headers["x-request-id"] == "abc-1.2:3_4"
    assert re.fullmatch(r"abc-1\.2\.3_4-[0-9a-f]{24}", w.engines[0].received[0].headers["x-request-id"])


async def test_two_requests_with_the_same_id_have_different_ids_at_the_engine(world):
    w = await world(None)
    answers = [await w.ask(headers={"x-request-id": "same"}) for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in answers] == ["same", "same"]
    assert len({request.headers["x-request-id"] for request in w.engines[0].received}) == 2


async def test_a_request_id_that_could_do_harm_is_replaced(world):
    w = await world(None)
    for bad in ("a b", "x" * 200, "weir:policy:demo{}", "é".encode()):
        response = await w.ask(headers={"x-request-id": bad})
        assert response.headers["x-request-id"].startswith("req-")
        assert w.engines[0].received[-1].headers["x-request-id"] == response.headers["x-request-id"]


async def test_the_trace_context_and_credentials_are_forwarded(world):
    w = await world(None)
    sent = {"traceparent": "00-aa-bb-01", "tracestate": "x=1", "authorization": "Bearer k"}
    await w.ask(headers=sent)
    received = w.engines[0].received[0].headers
    assert {name: received[name] for name in sent} == sent


async def test_hop_by_hop_headers_are_removed_in_both_directions(world):
    w = await world(reply({"ok": 1}, 200, "keep-alive: timeout=5", "proxy-authenticate: x", "x-weir-instance: liar"))
    response = await w.ask(headers={"connection": "keep-alive, x-secret", "x-secret": "1", "te": "trailers"})
    received = w.engines[0].received[0].headers
    assert not {"x-secret", "te", "connection", "accept-encoding", "x-weir-pool"} & set(received)
    assert "keep-alive" not in response.headers
    assert "proxy-authenticate" not in response.headers
    assert response.headers.get_list("x-weir-instance") == ["demo-0"]


async def test_the_host_header_names_the_engine(world):
    w = await world(None)
    await w.ask()
    assert w.engines[0].received[0].headers["host"] == f"127.0.0.1:{w.engines[0].port}"
