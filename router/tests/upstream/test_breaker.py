"""The breaker stops requests to a failing instance, and lets one at a time check whether it works again."""

import asyncio
from contextlib import suppress

import httpx
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.pool.endpoint import Endpoint
from router.serving.prompt.sessions import Sessions
from router.tests.conftest import instance, key_entry
from router.tests.engine import break_off, events, hang_up, reply
from router.upstream.breaker import SPARED_S, Breaker

OPEN_S = 10.0


def opened(now=100.0):
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(now, 3)
    return breaker


def test_a_breaker_stays_closed_below_the_number_of_failures():
    breaker = Breaker()
    breaker.failed(0, 3)
    breaker.failed(0, 3)
    assert breaker.refusal(0, 10) == ""


def test_a_breaker_opens_after_consecutive_failures():
    assert opened().refusal(109.9, 10) == "breaker open after 3 failures in a row"


def test_a_success_between_failures_resets_the_counts():
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(0, 2)
        breaker.answered()
        breaker.served()
    assert breaker.state == "closed"
    for _ in range(2):
        assert [breaker.take_back(2, count=2) for _ in range(7)] == [*[True] * 6, False]
        breaker.served()


def test_after_its_open_time_the_breaker_lets_one_request_through():
    breaker = opened()
    assert breaker.refusal(110, 10) == ""
    breaker.begin()
    assert breaker.refusal(110, 10) == "breaker half open: one request is trying it"


def test_broken_answers_open_the_breaker():
    breaker = Breaker()
    for _ in range(3):
        breaker.answered()
        breaker.failed(0, 3)
    assert breaker.state == "open"


def test_an_answer_without_the_model_closes_the_breaker_until_the_next_failure():
    breaker = opened()
    breaker.answered(computed=False)
    assert breaker.state == "closed"
    breaker.failed(120, 3)
    assert breaker.state == "open"


def test_an_old_answer_does_not_close_an_open_breaker():
    breaker = opened()
    breaker.served()
    assert breaker.state == "open"


def test_a_successful_probe_closes_the_breaker():
    breaker = opened()
    breaker.begin()
    breaker.answered()
    assert (breaker.state, breaker.refusal(110, 10)) == ("closed", "")


def test_a_failed_probe_opens_the_breaker_for_as_long_again():
    breaker = opened()
    probe = breaker.begin()
    breaker.failed(110, 3)
    breaker.end(probe)
    assert breaker.refusal(119.9, 10)
    assert not breaker.refusal(120, 10)
    assert breaker.take_back(3)
    assert not breaker.refusal(110, 10), "the request was at fault"


def test_a_probe_without_a_result_allows_another_probe():
    breaker = opened()
    breaker.end(breaker.begin())
    assert breaker.refusal(110, 10) == ""


def test_the_end_of_an_earlier_request_does_not_affect_the_probe():
    breaker = Breaker()
    earlier = breaker.begin()
    for _ in range(3):
        breaker.failed(100, 3)
    breaker.begin()
    breaker.end(earlier)
    assert breaker.refusal(110, 10) == "breaker half open: one request is trying it"


def test_a_probe_that_ends_late_does_not_affect_the_next():
    breaker = opened()
    first = breaker.begin()
    breaker.answered()
    for _ in range(3):
        breaker.failed(120, 3)
    second = breaker.begin()
    breaker.end(first)
    assert breaker.state == "half open"
    breaker.end(second)
    assert breaker.state == "open"


class Sending(RuleBasedStateMachine):
    """Begin, answer, fail and end requests in any order; count their effects independently."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.endpoint = Endpoint(instance("a", "http://127.0.0.1:1"))
        self.given_back = 0
        self.leases = []  # (lease, whether it probes the instance)
        self.ended = 0

    @rule(tokens=st.integers(0, 5))
    @precondition(lambda self: not self.endpoint.refusal(self.now, OPEN_S))
    def begins(self, tokens):
        lease = self.endpoint.lease(tokens, self.count)
        self.leases.append([lease, self.endpoint.breaker.state == "half open"])

    def count(self):
        self.given_back += 1

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: self.leases)
    def answers(self, which):
        self.leases[which % len(self.leases)][0].first_content()
        self.endpoint.breaker.answered()
        for one in self.leases:
            one[1] = False

    @rule(passed_s=st.sampled_from([0.0, 1.0, OPEN_S]))
    def fails(self, passed_s):
        self.now += passed_s
        self.endpoint.breaker.failed(self.now, 2)

    @rule()
    def waits(self):
        self.now += OPEN_S

    @rule(which=st.integers(0, 9), error=st.sampled_from([None, ValueError, asyncio.CancelledError]))
    @precondition(lambda self: self.leases)
    def ends(self, which, error):
        lease, _ = self.leases.pop(which % len(self.leases))
        with suppress(ValueError, asyncio.CancelledError), lease:
            if error is not None:
                raise error
        lease.end()  # a second time
        self.ended += 1

    @invariant()
    def one_request_at_most_tries_it(self):
        probes = sum(tries for _, tries in self.leases)
        assert probes == (self.endpoint.breaker.state == "half open")

    @invariant()
    def each_lease_is_given_back_once(self):
        assert self.endpoint.requests == len(self.leases)
        assert self.given_back == self.ended
        if not self.leases:
            assert (self.endpoint.prefill_tokens, self.endpoint.decodes) == (0, 0)


TestSending = Sending.TestCase


async def test_a_request_that_the_router_fails_before_it_is_sent_leaves_no_load_behind(world, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of order")

    w = await world(None)
    monkeypatch.setattr(Sessions, "sent", fail)
    with suppress(httpx.HTTPError, RuntimeError):
        await w.ask()
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    assert (endpoint.requests, endpoint.prefill_tokens, endpoint.decodes) == (0, 0, 0)
    monkeypatch.undo()
    assert (await w.ask()).status_code == 200


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


async def test_streams_that_break_after_their_first_content_open_the_breaker(world):
    w = await world(break_off(events()[:1]), None, failure__breaker_failures=3)
    broken = 0
    while broken < 3:
        broken += b"upstream_failed" in (await w.ask(stream=True)).content
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "open"


async def test_one_clients_failures_never_open_the_last_breaker(world):
    w = await world(break_off(events()[:1]), failure__breaker_failures=3)
    for _ in range(6):
        assert b"upstream_failed" in (await w.ask(stream=True)).content
    w.engines[0].behaviour = reply()
    assert (await w.ask()).status_code == 200


def test_failures_of_several_clients_open_the_last_breaker_only_after_a_minute_without_a_served_answer():
    breaker = Breaker()

    def fails(now: float, *, is_last: bool = True) -> None:
        breaker.failed(now, 2, f"client {now}", lambda several: is_last and several)

    for now in (0.0, 1.0, SPARED_S - 1):
        fails(now)
    assert breaker.state == "closed"
    breaker.served()
    for now in (SPARED_S, SPARED_S + 30, 2 * SPARED_S - 1):
        fails(now)
    assert breaker.state == "closed"
    fails(2 * SPARED_S)
    assert breaker.refusal(2 * SPARED_S + 1, OPEN_S)


async def test_several_clients_with_bad_requests_keep_nobody_from_the_last_instance(world):
    async def behave(engine, request, writer):
        await (hang_up if request.document["prompt"] == "bad" else reply())(engine, request, writer)

    w = await world(behave, behave, failure__breaker_failures=2, failure__breaker_open_s=60)
    secrets = [f"sk-weir-1-client{number}" for number in range(6)]
    w.published.keys(*map(key_entry, secrets))
    auth = w.router.pools.auth
    await w.until(lambda: auth.ring is not None and auth.ring.by_hash, "the keys")
    for secret in secrets * 8:
        assert (await w.ask(prompt="bad", headers={"x-api-key": secret})).status_code == 502
    assert (await w.ask()).status_code == 200


def test_one_clients_failures_never_keep_the_last_instance_from_others():
    breaker = Breaker()
    for _ in range(2):
        breaker.failed(0, 2, "mallory", lambda several: False)
    assert breaker.refusal(1, OPEN_S)
    assert not breaker.reconsider("mallory"), "the same client finds it shut, however few others are left"
    tries = ((1, True, "mallory", False), (1, False, "mallory", True), (1, True, "alice", False),
             (SPARED_S, True, "alice", True))  # fmt: skip
    for now, is_last, tenant, is_shut in tries:
        probe = breaker.begin()
        breaker.failed(now, 2, tenant, lambda several, is_last=is_last: is_last)
        breaker.end(probe)
        assert bool(breaker.refusal(now, OPEN_S)) is is_shut


async def test_back_pressure_does_not_open_the_breaker(world):
    w = await world(reply({"error": "busy"}, 503), None, failure__breaker_failures=1)
    full = w.router.pools.get("demo").endpoints["demo-0"]
    for _ in range(6):
        assert (await w.ask()).status_code == 200
        full.look(0.0)  # the next second
    assert full.breaker.state == "closed"
    assert len(w.engines[0].received) == 3


async def test_client_errors_do_not_open_the_breaker(world):
    w = await world(reply({"error": "bad"}, 400), failure__breaker_failures=1)
    for _ in range(3):
        assert (await w.ask()).status_code == 400
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "closed"
