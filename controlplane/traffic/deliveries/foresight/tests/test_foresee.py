"""Predictions from the newest receipts in Redis and the pairs of earlier switchbacks in the database."""

import random

import pytest
from django.utils import timezone

from controlplane.traffic.deliveries import results
from controlplane.traffic.deliveries.foresight.foresee import Foresight, foresee, of_delivery, spreads
from controlplane.traffic.deliveries.foresight.tests.receipts import WARM_IN_A_MINUTE, fill
from controlplane.traffic.deliveries.judge import switchback
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.verdicts import Levels, levels_of
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import ComparisonGuard, Plan
from controlplane.traffic.deliveries.states import Trigger
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, proposed

BACK = {"mode": "switchback", "block_s": 60, "washout_s": 10, "pairs": 8}
GUARDS = [{"metric": "ttft", "classes": ["warm"], "worse": 0.1, "fine": 0.25}]


def plan(*steps) -> Plan:
    return parse_plan({"steps": list(steps), "guards": GUARDS}, pools=["demo"])


def test_a_prediction_from_receipts_states_what_a_plan_can_show_and_their_age(policy, pool, live_redis):
    fill(live_redis)
    found = foresee(policy, plan(CANARY, FULL))
    assert [each.text for each in found.lines] == [WARM_IN_A_MINUTE]
    assert found.traffic.startswith("from 500 requests within 9 min, the newest 1 min ")
    assert found.complete


@pytest.mark.parametrize("away", [False, True])
def test_without_traffic_the_prediction_says_so_once(policy, pool, away, request):
    if away:
        request.getfixturevalue("redis_away")
    found = foresee(policy, plan(CANARY, FULL))
    assert (found.traffic, found.lines, found.complete) == (
        "no recent traffic of demo: how long its classes take is not known",
        (),
        False,
    )


def test_a_plan_that_compares_nothing_has_no_prediction(policy, pool):
    assert foresee(policy, plan(FULL)) == Foresight()


def judged(differences: list[float], levels: Levels) -> GuardFinding:
    finding = GuardFinding(metric="ttft", request_class="warm", verdict="no_data", text="", needed=True)
    guard = ComparisonGuard("ttft", ("warm",), worse=0.1, fine=0.25)
    return switchback._judged(finding, guard, differences, levels)


@pytest.mark.parametrize("earlier", [0, 2])
def test_the_spread_is_that_of_the_latest_switchback(policy, pool, earlier):
    delivery = proposed(policy, CANARY, BACK, FULL, guards=GUARDS)
    draws, levels = random.Random(5), levels_of(plan(CANARY, BACK, FULL))
    differences = [draws.gauss(0, 0.04) for _ in range(8)]
    mean = sum(differences) / 8
    spread = (sum((each - mean) ** 2 for each in differences) / 7) ** 0.5
    halved = [Levels(levels.fail / 2**each, levels.fine / 2**each) for each in range(earlier + 1)]
    delivery.results = [
        results.of_step(1, Trigger.PAUSE, timezone.now(), [judged(differences, each)]) for each in halved
    ]
    delivery.save(update_fields=["results"])
    assert spreads(policy) == {("ttft", "warm"): pytest.approx(spread, rel=0.01)}
    (power,) = [each.text for each in of_delivery(delivery).lines if "switchback" in each.text]
    assert power.endswith("as in the latest switchback)")


def test_a_switchback_that_was_not_judged_gives_no_spread(policy, pool):
    delivery = proposed(policy, CANARY, BACK, FULL, guards=GUARDS)
    finding = GuardFinding(metric="ttft", request_class="warm", verdict="no_data", text="", needed=True)
    delivery.results = [results.of_step(1, Trigger.PAUSE, timezone.now(), [finding])]
    delivery.save(update_fields=["results"])
    assert spreads(policy) == {}
