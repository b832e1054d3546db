"""One endpoint's requests begin, answer, fail, end and are cancelled in any order."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.pool import lease as leases
from router.pool.endpoint import Endpoint
from router.pool.health.progress import Progress
from router.pool.lease import Lease
from router.tests.conftest import instance
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules
from router.upstream.breaker import Breaker

pytestmark = pytest.mark.timeout(LONGEST)
OPEN_S = 5.0
FAILURES = 2
MOST = 4
STEPS = 25


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.endpoint = Endpoint(instance("demo-0", "http://127.0.0.1:1"))
        self.now = 0.0
        self.begun = self.given_back = 0
        self.open: list[Lease] = []
        self.probes: list[Lease] = []  # leases that began while the breaker was not closed

    @precondition(lambda self: len(self.open) < MOST and not self.endpoint.refusal(self.now, OPEN_S))
    @rule(tokens=st.integers(0, 100))
    def begins(self, tokens: int) -> None:
        trying = self.endpoint.breaker.state != "closed"
        self.open.append(self.endpoint.lease(tokens, self._count))
        self.begun += 1
        self.probes += self.open[-1:] if trying else []

    def _count(self) -> None:
        self.given_back += 1

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MOST - 1), how=st.sampled_from(["answers", "is_served", "fails", "is_charged"]))
    def goes_on(self, which: int, how: str) -> None:
        lease = self.open[which % len(self.open)]
        if how == "answers":
            lease.first_content()
            self.endpoint.breaker.answered()
        elif how == "is_served":
            self.endpoint.breaker.served()
        elif how == "fails":
            self.endpoint.breaker.failed(self.now, FAILURES)
        else:
            lease.charge(10)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MOST - 1), times=st.integers(1, 2))
    def ends(self, which: int, times: int) -> None:
        """End a request once or twice, as a cancellation may."""
        lease = self.open.pop(which % len(self.open))
        for _ in range(times):
            with lease:
                pass
        self.probes = [each for each in self.probes if each is not lease]

    @rule(seconds=st.sampled_from([1.0, OPEN_S]))
    def waits(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def one_request_tries_a_half_open_instance(self) -> None:
        if self.endpoint.breaker.state == "closed":
            self.probes.clear()
        assert len(self.probes) <= 1

    @invariant()
    def each_lease_is_given_back_once(self) -> None:
        assert self.given_back == self.begun - len(self.open)
        assert self.endpoint.requests == len(self.open)
        assert self.open or (self.endpoint.prefill_tokens, self.endpoint.decodes) == (0, 0)


def test_no_schedule_leaks_a_lease_or_lets_two_requests_probe_an_instance() -> None:
    try_schedules(LeaseMachine, 60, steps=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 3))
def test_none_of_many_schedules_leaks_a_lease_or_lets_two_requests_probe_an_instance(number: int) -> None:
    try_schedules(LeaseMachine, 200 * TIMES, number, STEPS)


@pytest.mark.slow
def test_a_schedule_detects_a_probe_that_ends_with_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Lease.end

    def end(self: Lease) -> None:
        breaker = self._endpoint.breaker if self._endpoint is not None else Breaker()
        real(self)
        breaker.end(breaker._probe)

    monkeypatch.setattr(Lease, "end", end)
    assert schedules_until_broken(LeaseMachine, 1500, STEPS)


@pytest.mark.slow
def test_a_schedule_detects_a_lease_that_is_released_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Lease.end

    def end(self: Lease) -> None:
        endpoint = self._endpoint
        real(self)
        self._endpoint = endpoint

    monkeypatch.setattr(Lease, "end", end)
    assert schedules_until_broken(LeaseMachine, 200, STEPS)


def test_a_request_that_ends_without_a_token_reports_how_long_it_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1000.0, 1020.0, 1030.0))
    monkeypatch.setattr(leases, "perf_counter", lambda: next(times))
    endpoint = Endpoint(instance("demo-0", "http://127.0.0.1:1"))
    held: list[float] = []
    monkeypatch.setattr(Progress, "ended_without", lambda progress, held_s: held.append(held_s))
    with endpoint.lease(600, lambda: None) as lease:
        lease.charge(10)  # the GPU clock is read again
    assert held == [30.0]
