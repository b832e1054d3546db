"""Every answer that means "not now" says when to retry."""

import http

import pytest

from router.contract.net.retry_after import DEFAULT_S, NOT_NOW, retry_after
from router.http import errors
from router.http.errors import ErrorResponse
from router.http.exchange import BROKEN
from router.tests.engine import hang_up, reply


@pytest.mark.parametrize("status", sorted(status.value for status in http.HTTPStatus if status >= 400))
def test_each_status_that_means_not_now_has_a_retry_time(status):
    lines, _ = errors.answer("/v1/completions", ErrorResponse(status, "code", "message"), "id")
    assert (b"retry-after: %d\r\n" % DEFAULT_S in lines) is (status in NOT_NOW)


def test_a_known_time_takes_precedence_over_the_default_and_is_at_least_a_second():
    assert [retry_after(503, 17), retry_after(503, 0), retry_after(500, 3), retry_after(500)] == [17, 1, 3, None]


def test_an_answer_about_a_fault_of_the_router_itself_does_not_ask_for_a_retry():
    assert BROKEN.retry_after_s is None


@pytest.mark.parametrize("status", sorted(NOT_NOW))
async def test_an_engines_refusal_without_a_retry_time_gets_one(world, status):
    w = await world(reply({"error": "busy"}, status))
    answer = await w.ask()
    assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (
        status,
        {"error": "busy"},
        str(DEFAULT_S),
    )


async def test_an_engines_own_retry_time_is_passed_on(world):
    async def busy(engine, request, writer):
        writer.write(b"HTTP/1.1 503 Busy\r\nretry-after: 77\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    w = await world(busy)
    assert (await w.ask()).headers.get_list("retry-after") == ["77"]


@pytest.mark.parametrize(
    ("open_s", "after", "again"), [(7.5, "8", None), (120.0, "120", None), (600.0, "600", "false")]
)
async def test_clients_of_the_only_instance_retry_when_its_breaker_allows_it(world, open_s, after, again):
    w = await world(hang_up, failure__breaker_open_s=open_s)
    for stream in (False, True):
        answer = await w.ask(stream=stream)
        assert (answer.status_code, answer.headers["retry-after"]) == (502, after)
        assert answer.headers.get("x-should-retry") == again
        assert f"retry in {after} s" in answer.json()["error"]["message"]
