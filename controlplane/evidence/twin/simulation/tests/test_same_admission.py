"""The router's event loop and the twin's virtual clock drive the same admission: equal requests get equal outcomes
at equal times. Engines are replaced by ones that answer after a given time; all times are exact binary fractions."""

import asyncio
import dataclasses
import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controlplane.evidence.twin.simulation import sim_endpoint, sim_router, simulate
from controlplane.evidence.twin.simulation.tests.builders import asks, fleet, play, policy
from fleet.engine.engine import StepResult
from router.contract.redis.published import FleetValue, PublishedInstance
from router.http.errors import ErrorResponse
from router.policy.types import ParsedPolicy, Rates
from router.pool import pool as pool_module
from router.pool.admission import Admission
from router.pool.pool import Pool
from router.request.bands import AskedBand
from router.request.call import Call
from router.request.request import NOT_READ
from router.serving import admit, proxy
from router.serving.pools import Pools
from router.serving.prompt.sessions import Sessions
from router.telemetry.recorder import Recorder
from router.upstream.answer.used import Usage

RATES = Rates(prefill_tokens_per_s=100.0)
DRAW = 0.25
ARRIVAL = 2.0**-9  # offsets that keep two events from coinciding
SERVICE = 2.0**-20
OUTPUT = 10  # tokens of every answer
CLASSES = {"classes__warm_new_tokens": 100, "classes__heavy_new_tokens": 300}


@dataclass(frozen=True)
class Asked:
    at_s: float
    tokens: int
    service_s: float
    deadline_s: float | None = None  # after the arrival
    band: int = 0
    tenant: str = ""


@dataclass(frozen=True)
class Fate:
    instance: str
    code: str
    over_s: float
    queued_s: float
    admitted_s: float | None


def scripted(*given: tuple[Any, ...]) -> list[Asked]:
    """(arrival, tokens, service time, deadline, band, tenant), with no two events at the same moment."""
    made = []
    for number, (at_s, tokens, service_s, deadline_s, *more) in enumerate(sorted(given, key=lambda one: one[0]), 1):
        late = None if deadline_s is None else deadline_s + number * 2.0**-30
        made.append(Asked(at_s + number * ARRIVAL, tokens, service_s + number * SERVICE, late, *more))
    return made


# The twin


class TimedEngine:
    """Answers each request after the time given for it."""

    services: dict[str, float]

    def __init__(self, *_: Any, **__: Any) -> None:
        self._runs: list[tuple[float, Any]] = []
        self.waiting = self.running = self.transferring = 0
        self.pool = SimpleNamespace(total=10_000)
        self.limits = SimpleNamespace(block_size=16)

    def add_request(self, work: Any, now: float) -> None:
        work.first_token_s = work.arrived_s = now
        self._runs.append((now + self.services[work.id], work))

    def next_turn_s(self) -> float | None:
        return min((at for at, _ in self._runs), default=None)

    def turn(self, now: float) -> StepResult:
        over = [work for at, work in self._runs if at <= now]
        self._runs = [run for run in self._runs if run[0] > now]
        for work in over:
            work.finished_s = now
        return StepResult(now, now, 1, 1, over, first=over, finished=over)

    def usage_at(self, now: float) -> float:
        return 0.0

    def stats(self) -> Any:
        return SimpleNamespace(preemptions=0, blocked_s=0.0, tiers=None)


def in_the_twin(requests: list[Asked], rule: ParsedPolicy, instances: int) -> list[Fate]:
    deadlines = {one.at_s: one.at_s + one.deadline_s for one in requests if one.deadline_s is not None}
    admitted: dict[str, float] = {}

    class Engine(TimedEngine):
        services = {str(number): one.service_s for number, one in enumerate(requests)}

        def add_request(self, work: Any, now: float) -> None:
            admitted[work.id] = now
            super().add_request(work, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim_endpoint, "Engine", Engine)
        patch.setattr(sim_router, "UNKNOWN", RATES)
        patch.setattr(
            simulate,
            "Admission",
            lambda queue, now, tenant, band: Admission(queue, now, tenant, deadlines.get(now), band=band),
        )
        patch.setattr(simulate.random, "Random", lambda seed: SimpleNamespace(random=lambda: DRAW))
        trace = [
            dataclasses.replace(asks(number, one.at_s, tokens=one.tokens), band=one.band, tenant=one.tenant)
            for number, one in enumerate(requests)
        ]
        outcome = play(trace, fleet=fleet(instances), policy=rule)
    return [
        Fate(one.instance, one.code, one.sent_s + (one.e2e_s or 0.0), one.queued_s, admitted.get(str(one.index)))
        for one in outcome.requests
    ]


# The router


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that sleeps by setting its clock."""

    def __init__(self) -> None:
        super().__init__(Selector(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self._loop.now += timeout or 0.0
        return super().select(0)


class TimedProxy(proxy.Proxy):
    """Serves each request by waiting for the time given for it."""

    services: dict[str, float]
    admitted: dict[str, float]

    async def _attempt(self, call: Call, decision: Any, *_: Any) -> bool:
        endpoint = call.pool.endpoints[decision.instance]
        with call.pool.lease(endpoint, decision.new_tokens) as lease:
            self._sessions.sent(call, endpoint)
            self.admitted[call.id] = asyncio.get_running_loop().time()
            await asyncio.sleep(self.services[call.id])
            lease.first_content()
            call.outcome.usage = Usage(call.prediction.prompt_tokens, 0, OUTPUT)
            call.pool.queue.outputs.answered(OUTPUT)
            admit.settle(call)
        return True


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    clock = SimpleNamespace(perf_counter=loop.time, time=loop.time, monotonic=loop.time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy, "time", clock)
        patch.setattr(admit, "time", clock)
        patch.setattr(pool_module, "random", lambda: DRAW)
        patch.setattr(pool_module, "perf_counter", loop.time)
        yield loop
    loop.close()


def pool_of(rule: ParsedPolicy, instances: int) -> Pool:
    pool = Pool("demo")
    url, size = "http://127.0.0.1:1", {"block_size": 16, "kv_blocks": 25_000}
    published = tuple(
        PublishedInstance(id=f"chat-{number}", epoch=1, url=url, state="ready", routable=True, **size)
        for number in range(instances)
    )
    pool.take_fleet(FleetValue(at=1.0, model="m", instances=published))
    pool.policy, pool.rates = rule, RATES
    pool.queue.follow(rule)
    return pool


async def answered(served: TimedProxy, pool: Pool, number: int, one: Asked) -> Fate:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(one.at_s - loop.time())
    deadline = None if one.deadline_s is None else one.at_s + one.deadline_s
    call = Call(str(number), "/v1/completions", loop.time(), loop.time(), one.tenant, pool=pool)
    call.asked_band, call.deadline = AskedBand(one.band), deadline
    call.prediction.prompt_tokens, call.request = one.tokens, replace(NOT_READ, turn=number)
    code = ""
    try:
        await served._answer(call, SimpleNamespace())
    except ErrorResponse as error:
        code = error.code
    instance = "" if code else call.instance
    return Fate(instance, code, loop.time(), call.outcome.queued_s, served.admitted.get(call.id))


async def each_second(pool: Pool) -> None:
    while True:
        await asyncio.sleep(1.0)
        pool.queue.look_again()


def in_the_router(requests: list[Asked], rule: ParsedPolicy, instances: int) -> list[Fate]:
    pool = pool_of(rule, instances)
    served = TimedProxy(Pools(), Sessions(), Recorder())
    served.services = {str(number): one.service_s for number, one in enumerate(requests)}
    served.admitted = {}

    async def run() -> list[Fate]:
        beat = asyncio.create_task(each_second(pool))
        fates = await asyncio.gather(*(answered(served, pool, number, one) for number, one in enumerate(requests)))
        beat.cancel()
        return fates

    with virtual_time() as loop:
        return loop.run_until_complete(run())


def same(requests: list[Asked], rule: ParsedPolicy, instances: int = 1) -> list[Fate]:
    fates = in_the_router(requests, rule, instances)
    assert in_the_twin(requests, rule, instances) == fates
    return fates


NARROW = {
    "admission__max_inflight_per_instance": 1,
    "admission__max_queue_warm": 2,
    "admission__max_wait_warm_s": 2.5,
    "admission__max_wait_heavy_s": 6.0,
    "admission__keyless_band_max": 100,
    **CLASSES,
}


def test_a_scripted_scenario_has_the_same_result_in_router_and_twin() -> None:
    warm, heavy = 50, 400
    requests = scripted(
        (0.0, warm, 4.0, None),
        (0.125, warm, 1.0, 1.0),
        (0.25, heavy, 1.0, None),
        (0.375, warm, 1.0, None),
        (0.5, warm, 1.0, None),
    )
    fates = same(requests, policy("least_requests", **NARROW))
    assert [one.code for one in fates] == ["", "deadline_exceeded", "", "queue_timeout", "saturated"]
    assert fates[2].queued_s == fates[0].over_s - requests[2].at_s
    assert fates[3].queued_s == 2.5


def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once_in_router_and_twin() -> None:
    steady = [(number * 0.25, 50, 1.0, None) for number in range(8)]
    requests = scripted(*steady, (5.25, 50, 1.0, 0.5))
    fates = same(
        requests,
        policy("least_requests", **{**NARROW, "admission__max_queue_warm": 9, "admission__max_wait_warm_s": 30.0}),
    )
    assert fates[-1].code == "deadline_unmeetable"
    assert fates[-1].over_s == requests[-1].at_s


def test_a_refusing_strategy_refuses_in_router_and_twin() -> None:
    rule = policy("mooncake_conductor", strategy__ttft_limit_s=2.0, **CLASSES)
    fates = same(scripted((0.0, 200, 4.0, None), (0.5, 200, 1.0, None), (5.0, 200, 1.0, None)), rule)
    assert [one.code for one in fates] == ["", "over_ttft_limit", ""]


def test_a_pool_without_instances_refuses_in_router_and_twin() -> None:
    assert [one.code for one in same(scripted((0.5, 50, 1.0, None)), policy(), 0)] == ["no_instance_ready"]


def test_bands_and_tenants_wait_equally_long_in_router_and_twin() -> None:
    more = {"admission__max_queue_warm": 4, "admission__max_wait_warm_s": 30.0}
    requests = scripted(
        (0.0, 50, 3.0, None),
        (0.25, 50, 1.0, None, -5, "a"),
        (0.5, 50, 1.0, None, 0, "b"),
        (0.75, 50, 1.0, None, 0, "b"),
        (1.0, 20, 1.0, None, 0, "c"),
        (1.25, 50, 1.0, None, 5, "d"),
        (1.5, 50, 1.0, None, 0, "e"),
    )
    fates = same(requests, policy("least_requests", **{**NARROW, **more}))
    assert [one.code for one in fates] == ["", "displaced", "", "displaced", "", "", ""]
    admitted = sorted((2, 4, 5, 6), key=lambda number: fates[number].admitted_s or 0.0)
    assert admitted == [5, 2, 4, 6]


QUARTERS = st.integers(0, 40).map(lambda number: number / 4)
REQUESTS = st.lists(
    st.tuples(
        QUARTERS,
        st.sampled_from([50, 200, 400]),
        st.integers(1, 16).map(lambda number: number / 4),
        st.one_of(st.none(), st.integers(1, 20).map(lambda number: number / 4)),
        st.sampled_from([0, 0, 0, 5, -10]),
        st.sampled_from(["a", "b"]),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=60)
@given(
    REQUESTS,
    st.integers(1, 3),
    st.sampled_from(["least_requests", "adaptive_v1", "mooncake_conductor"]),
    st.integers(0, 3),
    st.sampled_from([0.5, 2.5, 30.0]),
    st.integers(1, 2),
)
def test_router_and_twin_decide_and_refuse_the_same_at_the_same_times_on_any_traffic(
    given: list[tuple[Any, ...]], instances: int, route: str, longest: int, wait_s: float, most: int
) -> None:
    limits: dict[str, Any] = {f"admission__max_queue_{name}": longest for name in ("warm", "medium", "heavy")}
    limits |= {f"admission__max_wait_{name}_s": wait_s for name in ("warm", "medium", "heavy")}
    if route == "mooncake_conductor":
        limits["strategy__ttft_limit_s"] = 3.0
    bands = {"admission__keyless_band_max": 100, "admission__band_max_wait_s": 3.0, "admission__low_band_share": 0.5}
    rule = policy(route, admission__max_inflight_per_instance=most, **CLASSES, **limits, **bands)
    same(scripted(*given), rule, instances)
