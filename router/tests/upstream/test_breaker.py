"""The breaker takes a failing instance out, and one request at a time finds out whether it is well again."""

from router.tests.engine import break_off, events, hang_up, reply
from router.upstream.breaker import Breaker


def opened(now=100.0):
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(now, 3)
    return breaker


def test_it_stays_closed_below_the_number_of_failures():
    breaker = Breaker()
    breaker.failed(0, 3)
    breaker.failed(0, 3)
    assert breaker.refusal(0, 10) == ""


def test_it_opens_after_so_many_failures_in_a_row():
    assert opened().refusal(109.9, 10) == "breaker open after 3 failures in a row"


def test_a_success_between_failures_starts_the_count_again():
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(0, 2)
        breaker.answered()
        breaker.served()
    assert breaker.state == "closed"


def test_after_its_time_it_lets_one_request_through():
    breaker = opened()
    assert breaker.refusal(110, 10) == ""
    breaker.begin()
    assert breaker.refusal(110, 10) == "breaker half open: one request is trying it"


def test_answers_that_begin_and_break_open_it():
    breaker = Breaker()
    for _ in range(3):
        breaker.answered()
        breaker.failed(0, 3)
    assert breaker.state == "open"


def test_an_old_answer_that_ends_does_not_close_it():
    breaker = opened()
    breaker.served()
    assert breaker.state == "open"


def test_a_probe_that_is_answered_closes_it():
    breaker = opened()
    breaker.begin()
    breaker.answered()
    assert (breaker.state, breaker.refusal(110, 10)) == ("closed", "")


def test_a_probe_that_fails_opens_it_for_as_long_again():
    breaker = opened()
    breaker.begin()
    breaker.failed(110, 3)
    assert breaker.refusal(119.9, 10)
    assert not breaker.refusal(120, 10)


def test_a_probe_that_says_nothing_makes_room_for_another():
    breaker = opened()
    breaker.begin()
    breaker.neutral()
    assert breaker.refusal(110, 10) == ""


async def test_a_failing_instance_gets_no_requests_until_its_time_is_over(world):
    w = await world(hang_up, None, failure__breaker_failures=2, failure__breaker_open_s=60)
    for _ in range(10):
        assert (await w.ask()).status_code == 200
    assert len(w.engines[0].received) == 2
    w.engines[0].behaviour = reply()
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    assert endpoint.breaker.state == "open"
    w.published.policy(failure__breaker_failures=2, failure__breaker_open_s=0.1)

    async def served_by_both():
        return {(await w.ask()).headers["x-weir-instance"] for _ in range(4)} == {"demo-0", "demo-1"}

    while not await served_by_both():
        pass
    assert endpoint.breaker.state == "closed"


async def test_streams_that_break_after_their_first_byte_open_it(world):
    w = await world(break_off(events()[:1]), failure__breaker_failures=3)
    for _ in range(3):
        assert b"upstream_failed" in (await w.ask(stream=True)).content
    assert (await w.ask()).status_code == 503


async def test_back_pressure_does_not_open_it(world):
    w = await world(reply({"error": "busy"}, 503), None, failure__breaker_failures=1)
    for _ in range(6):
        assert (await w.ask()).status_code == 200
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "closed"
    assert len(w.engines[0].received) == 3


async def test_errors_of_the_client_do_not_open_it(world):
    w = await world(reply({"error": "bad"}, 400), failure__breaker_failures=1)
    for _ in range(3):
        assert (await w.ask()).status_code == 400
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "closed"
