"""The effects that a switchback's pairs can show: by the formula, and by the judge's own interval."""

import math
import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from controlplane.traffic.deliveries.foresight.steps import fails_from, fills, passes
from controlplane.traffic.deliveries.judge import switchback
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.verdicts import Levels, levels_of
from controlplane.traffic.deliveries.plan.default import default_plan
from controlplane.traffic.deliveries.plan.types import Canary, ComparisonGuard, Switchback

CANARIES = (Canary(0.05, 600, 3600), Canary(0.25, 600, 3600))
GUARD = ComparisonGuard("ttft", ("warm",), worse=0.10, fine=0.25)


def levels(pairs: int) -> Levels:
    """Return the levels of the default guards: nine comparisons in two canaries."""
    return levels_of(replace(default_plan(["demo"]), steps=(*CANARIES, Switchback(300, 30, pairs))))


@pytest.mark.parametrize(("pairs", "chance", "ratio"), [(4, 0.576, 2.05), (6, 0.94, 1.45)])
def test_the_chance_for_pairs_that_differ_by_a_tenth(pairs: int, chance: float, ratio: float) -> None:
    found = levels(pairs)
    assert passes(pairs, 0.1, 0.25, found.fine) == pytest.approx(chance, abs=0.005)
    assert fails_from(pairs, 0.1, 0.10, found.fail) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("pairs", [4, 6, 9])
def test_the_chance_is_the_share_of_equal_pairs_that_the_judge_finds_fine(pairs: int) -> None:
    draws, limits = random.Random(pairs), levels(pairs)
    finding = GuardFinding(metric="ttft", request_class="warm", verdict="no_data", text="")
    judged = [
        switchback._judged(finding, GUARD, [draws.gauss(0, 0.1) for _ in range(pairs)], limits) for _ in range(4_000)
    ]
    fine = sum(each.verdict == "fine" for each in judged) / len(judged)
    assert fine == pytest.approx(passes(pairs, 0.1, 0.25, limits.fine), abs=0.025)


def test_the_judge_fails_pairs_of_that_ratio_and_not_of_a_smaller_one() -> None:
    limits, ratio = levels(4), fails_from(4, 0.1, 0.10, levels(4).fail)
    finding = GuardFinding(metric="ttft", request_class="warm", verdict="no_data", text="")
    for factor, verdict in ((1.01, "fail"), (0.99, "inconclusive")):
        middle = math.log(ratio * factor)
        half = 0.1 * math.sqrt(3) / 2  # gives the sample standard deviation 0.1
        pairs = [middle - half, middle - half, middle + half, middle + half]
        assert switchback._judged(finding, GUARD, pairs, limits).verdict == verdict


def test_more_pairs_and_less_spread_detect_smaller_effects() -> None:
    chances = [passes(pairs, 0.1, 0.25, 0.01) for pairs in range(4, 101)]
    assert all(one <= other + 1e-6 for one, other in pairwise(chances))
    assert passes(6, 0.05, 0.25, 0.01) > passes(6, 0.1, 0.25, 0.01) > passes(6, 0.2, 0.25, 0.01)


def test_the_chance_of_enough_requests_is_poisson() -> None:
    assert fills(0.0, 30) == 0
    assert fills(30.0, 30) == pytest.approx(0.524, abs=0.001)
    assert fills(1e6, 30) == 1
