"""Measure how fast instances compute prompts relative to their pool's median; pools of equal ones need no pace."""

import random
from typing import Any

import pytest

from router.policy.decide import decide
from router.policy.fleet import FleetColumns
from router.policy.replay import situation
from router.policy.schema import document
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES
from router.policy.types import InstanceState, RoutingRequest
from router.pool.load.pace import OWN_PROMPTS, Pace
from router.pool.pool import Pool
from router.telemetry.rates import RateEstimates
from router.tests.conftest import Published, entry, fleet, instance, running
from router.tests.engine import engine, reply
from router.tests.test_rates import answered
from router.tests.values import receipt_of
from router.workers import pace_probes
from router.workers.pace_probes import PaceProbes

GROUPS = {"h-0": "h100", "h-1": "h100", "h-2": "h100", "a-0": "a100"}


def measured(**rates: tuple[float, int]) -> Pace:
    """Measure rates in tokens/s from the given number of prompts, by instance (with underscores for dashes)."""
    pace = Pace()
    for name, (rate, prompts) in rates.items():
        for _ in range(prompts):
            assert pace.prefill(1_000, 0, 1_000 / rate, name.replace("_", "-"), GROUPS[name.replace("_", "-")])
    return pace


def test_nothing_is_known_at_first() -> None:
    assert Pace().paces(GROUPS) == dict.fromkeys(GROUPS, 1.0)


def test_paces_are_the_same_however_often_they_are_read() -> None:
    draw, often, prompts = random.Random(2), Pace(), []
    for number in range(300):
        name, tokens = draw.choice(list(GROUPS)), draw.randrange(600, 9_000)
        seconds = (tokens / 20_000 + 0.02) * draw.uniform(0.8, 1.3) * (1.4 if name == "h-2" else 1.0)
        prompts.append((tokens, draw.choice([0, 0, 500]), seconds, name, GROUPS[name]))
        often.prefill(*prompts[-1])
        found, rates = often.uneven(GROUPS), often.rates(0.0, 9_000.0)
        if number % 20 == 0:
            once = Pace()
            for one in prompts:
                once.prefill(*one)
            assert (found, rates) == (once.uneven(GROUPS), once.rates(0.0, 9_000.0))
    assert "h-2" in found


def test_a_group_has_the_pace_of_its_measured_instances() -> None:
    assert measured(h_0=(30_000, 1), a_0=(10_000, 1)).paces(GROUPS) == {"h-0": 1, "h-1": 1, "h-2": 1, "a-0": 0.33}


def test_an_unmeasured_instance_of_an_unmeasured_group_has_a_pace_of_one() -> None:
    assert measured(h_0=(30_000, 1)).paces(GROUPS) == dict.fromkeys(GROUPS, 1.0)


@pytest.mark.parametrize(
    ("rate", "prompts", "pace"),
    [
        (15_000, OWN_PROMPTS - 1, 1.0),  # the instance's own prompts are too few
        (15_000, OWN_PROMPTS, 0.5),
        (28_000, OWN_PROMPTS, 1.0),  # within the noise
        (1_000, OWN_PROMPTS, 0.25),  # the lowest pace
        (600_000, OWN_PROMPTS, 4.0),
    ],
)
def test_an_instance_corrects_its_groups_rate_by_its_own_prompts(rate: float, prompts: int, pace: float) -> None:
    made = measured(h_1=(rate, prompts), h_0=(30_000, 33))  # the group's median covers its last 33 prompts
    assert made.paces({name: group for name, group in GROUPS.items() if group == "h100"})["h-1"] == pace


def prompt_s(new: int, cached: int) -> float:
    """Return the prefill time by a law with attention, on a fast GPU."""
    return 0.02 + 50e-6 * new + 1e-9 * new * (cached + new / 2) + 1e-6 * (new + cached)


def test_equal_engines_have_equal_paces_whatever_prompts_they_get() -> None:
    pace, draw = Pace(), random.Random(1)
    for _ in range(OWN_PROMPTS):
        for name, shortest, cached in (("h-0", 600, 0), ("h-1", 1_000, 90_000), ("h-2", 30_000, 0)):
            new = shortest + draw.randrange(500)
            pace.prefill(new, cached, prompt_s(new, cached), name, "h100")
    assert pace.uneven({name: "h100" for name in ("h-0", "h-1", "h-2")}) == {}


def test_a_slow_gpu_is_detected_although_fast_ones_get_the_long_prompts() -> None:
    pace, draw = Pace(), random.Random(1)
    for _ in range(OWN_PROMPTS):
        for name, shortest, slower in (("h-0", 15_000, 1), ("h-1", 9_000, 1), ("a-0", 600, 3)):
            new = shortest + draw.randrange(3_000)
            pace.prefill(new, 0, slower * prompt_s(new, 0), name, GROUPS[name])
    assert pace.uneven(GROUPS) == {"a-0": pytest.approx(1 / 3, abs=0.02)}


def test_instances_that_left_are_forgotten() -> None:
    pace = measured(h_1=(15_000, OWN_PROMPTS), h_0=(30_000, 33))
    assert pace.paces({"h-0": "h100"}) == {"h-0": 1.0}
    assert pace.paces({"h-0": "h100", "h-1": "h100", "h-2": "h100"})["h-1"] == 1.0


def mixed() -> Pool:
    pool = Pool("demo")
    url = "http://127.0.0.1:1"
    pool.take_fleet(fleet(*(instance(name, url, speed=group) for name, group in GROUPS.items())))
    return pool


def test_answers_determine_the_pace_of_instances() -> None:
    pool, seen = mixed(), RateEstimates()
    for at, name, ttft_ms in ((1.0, "h-0", 100), (3.0, "a-0", 400)):
        call = answered(3_000, ttft_ms)
        call.pool, call.at = pool, at
        call.decision = decide(RoutingRequest(1), [InstanceState(name)], document.parse(document.default()), 0.0)
        seen.ended(call)
    assert {name: one.pace for name, one in pool.endpoints.items()} == {"h-0": 1, "h-1": 1, "h-2": 1, "a-0": 0.25}
    assert pool.endpoints["a-0"].view("").pace == 0.25
    assert [pool.endpoints[name].measured_at for name in ("h-0", "h-1", "a-0")] == [1.0, 0.0, 3.0]


def policy(strategy: str, **changed: Any) -> Any:
    given = {path.replace("__", "."): value for path, value in changed.items()}
    return document.parse(document.apply_overrides(document.default(strategy), given))


@pytest.mark.parametrize("strategy", sorted(PARAMETERS["load.by_pace"].strategies))
def test_a_published_strategy_uses_paces_only_if_the_policy_says_so(strategy: str) -> None:
    request = RoutingRequest(8_000)
    even = [InstanceState("a", prefill_tokens=4_000, running=2), InstanceState("b", prefill_tokens=3_000, running=1)]
    unequal = [
        InstanceState("a", prefill_tokens=4_000, running=2, pace=8.0),
        InstanceState("b", prefill_tokens=3_000, running=1, pace=0.25),
    ]
    own = {"strategy__weight_prefill": 1.0, "strategy__weight_requests": 0.0} if strategy == "weighted" else {}
    published = policy(strategy, **own)
    before, now = decide(request, even, published, 0.5), decide(request, unequal, published, 0.5)
    assert (now.instance, now.reasons) == (before.instance, before.reasons)
    assert list(now.candidates) == list(before.candidates)
    paced = decide(request, unequal, policy(strategy, load__by_pace="on", **own), 0.5)
    assert [one.score for one in paced.candidates] != [one.score for one in now.candidates] or strategy == "ppd"


def test_every_strategy_always_uses_paces_or_reads_the_parameter_or_counts_no_tokens() -> None:
    always = {name for name, strategy in STRATEGIES.items() if strategy.by_pace}
    asks = set(PARAMETERS["load.by_pace"].strategies)
    assert not always & asks
    count_none = "round_robin random least_requests power_of_two prefix_hash sglang_cache_aware llm_d round_robin_pd"
    assert set(STRATEGIES) - always - asks == set(count_none.split())


def test_a_receipt_records_paces_that_differ_and_its_decision_can_be_repeated() -> None:
    request = RoutingRequest(8_000, held={})
    unequal = [InstanceState("a", pace=0.5), InstanceState("b", pace=2.0)]
    own = policy("cache_aware")
    decision = decide(request, unequal, own, 0.5)
    columns, inputs = decision.candidates.columns(), decision.candidates.inputs()  # type: ignore[attr-defined]
    assert columns["pace"] == [0.5, 2.0]
    receipt = receipt_of({"rule": "score", "prompt_tokens": 8_000, "inputs": inputs, "candidates": columns})
    assert situation(receipt).decide(own).instance == decision.instance == "b"
    even = decide(request, [InstanceState("a"), InstanceState("b")], own, 0.5)
    assert "pace" not in even.candidates.columns()  # type: ignore[attr-defined]


def test_a_fleet_knows_whether_its_instances_are_equal() -> None:
    columns = FleetColumns([InstanceState("a"), InstanceState("b")])
    assert not columns.is_paced
    columns.replace(1, InstanceState("b", pace=2.0))
    assert columns.is_paced
    assert columns.only([True, False]).is_paced  # the property is that of the whole fleet
    columns.replace(1, InstanceState("b"))
    assert not columns.is_paced


async def test_an_idle_instance_without_traffic_is_measured_by_a_probe(
    published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace_probes, "STEP_S", 0.01)
    asked = {"choices": [], "usage": {"prompt_tokens": 4_000, "completion_tokens": 1}}
    async with engine(reply(asked)) as fast, engine(reply(asked)) as slow:
        published.policy()
        published.fleet(entry("h-0", fast.url, speed="h100"), entry("a-0", slow.url, speed="a100"))
        async with running(redis_url) as (router, client):
            pool = router.pools.get_or_add("demo")
            for _ in range(1_000):
                if pool.endpoints and all(one.measured_at for one in pool.endpoints.values()):
                    break
                await client.get("/healthz")
            assert [one.measured_at > 0 for one in pool.endpoints.values()] == [True, True]
            assert [len(each.received) for each in (fast, slow)] == [1, 1]  # and none for ten minutes
            assert slow.received[0].document["max_tokens"] == 1
            assert not any(one.requests for one in pool.endpoints.values())
            page = (await client.get("/metrics")).text
            assert 'weir_router_pace{instance="a-0",pool="demo"}' in page


@pytest.mark.parametrize("change", [{}, {"requests": 1}, {"routable": False}, {"role": "decode"}])
async def test_no_other_instance_is_probed(change: dict[str, Any]) -> None:
    """A probe is not sent in a pool of equal instances, nor to a busy, unroutable or decode-only instance."""
    pool = mixed()
    if not change:
        pool.take_fleet(fleet(instance("h-0", "http://127.0.0.1:1", speed="h100")))
    for endpoint in pool.endpoints.values():
        for name, value in change.items():
            setattr(endpoint, name, value)
    probes = PaceProbes(lambda: [pool], lambda *_: None)
    probes.step(1_000.0)
    assert not probes._asked
