"""In a decision, tokens below the device tier count less; in its report, each token counts once."""

import pytest

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import InstanceState, RoutingRequest
from router.policy.view import weighted

INSTANCES = [InstanceState("near"), InstanceState("far")]
HELD = {"near": 6_000, "far": 8_000}


def asked(host: int = 0, disk: int = 0) -> RoutingRequest:
    tiers = {"near": (6_000, 0, 0), "far": (8_000 - host - disk, host, disk)}
    return RoutingRequest(10_000, held=HELD, held_tiers=tiers if host or disk else None)


@pytest.mark.parametrize(
    "strategy", ["cache_aware", "adaptive_v1", "lpwl", "lmetric", "mooncake_conductor", "weighted"]
)
def test_a_longer_prefix_on_disk_loses_to_a_shorter_one_on_the_device(strategy: str) -> None:
    policy = document.parse(document.default(strategy))
    assert decide(asked(), INSTANCES, policy, 0.0).instance == "far"
    assert decide(asked(disk=8_000), INSTANCES, policy, 0.0).instance == "near"
    assert decide(asked(host=8_000), INSTANCES, policy, 0.0).instance == "far"


def test_the_policy_sets_the_weights() -> None:
    whole = document.default("lpwl")
    for weight, chosen in ((1.0, "far"), (0.7, "near")):
        policy = document.parse(document.apply_overrides(whole, {"cache.host_weight": weight}))
        assert decide(asked(host=8_000), INSTANCES, policy, 0.0).instance == chosen


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_held_tokens_on_all_tiers_are_reported(strategy: str) -> None:
    """The prediction is compared with what engines report, which includes loads from every tier."""
    decision = decide(asked(disk=8_000), INSTANCES, document.parse(document.default(strategy)), 0.3)
    assert decision.cached_tokens == HELD[decision.instance]
    assert [one.cached_tokens for one in decision.candidates] == [6_000, 8_000]


def test_the_class_weights_tokens_by_tier_too() -> None:
    policy = document.parse(document.default("lpwl"))
    only = INSTANCES[1:]
    request = {
        disk: RoutingRequest(100_000, held={"far": 90_000}, held_tiers={"far": (90_000 - disk, 0, disk)})
        for disk in (0, 90_000)
    }
    assert decide(request[0], only, policy, 0.0).request_class == "warm"
    assert decide(request[90_000], only, policy, 0.0).request_class == "heavy"


@pytest.mark.parametrize(
    ("tiers", "expected"), [(None, 100), ((100, 0, 0), 100), ((0, 100, 0), 80), ((0, 0, 100), 50), ((20, 40, 40), 72)]
)
def test_the_weighted_sum_of_tiers(tiers: tuple[int, int, int] | None, expected: int) -> None:
    assert weighted(100, tiers, (0.8, 0.5)) == expected
    assert weighted(10, (0, 0, 100), (0.8, 0.0)) == 0  # a prompt shorter than the held prefix
