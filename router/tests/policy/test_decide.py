"""Decisions that do not depend on a strategy's formula."""

import pytest

from router.policy.decide import REASONS_SHOWN, decide
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import InstanceState, RoutingRequest

POLICY = document.parse(document.default())


def test_a_decision_without_an_instance_counts_the_reasons_of_refusal() -> None:
    instances = [InstanceState("first", running=512)]
    instances += [InstanceState(f"i-{number}", refused="draining") for number in range(3)]
    assert decide(RoutingRequest(1_000), instances, POLICY, 0.5).reasons == (
        "no instance can take the request",
        "3 of 4: draining",
        "1 of 4: its limit of requests is reached, 512 of 512",
    )


def test_many_kinds_of_reasons_are_summarised() -> None:
    instances = [InstanceState(f"i-{number}", refused=f"reason {number}") for number in range(12)]
    reasons = decide(RoutingRequest(1_000), instances, POLICY, 0.5).reasons
    assert len(reasons) == REASONS_SHOWN + 2
    assert reasons[-1] == "7 more for other reasons"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_chooses_the_only_instance(strategy: str) -> None:
    decision = decide(
        RoutingRequest(50_000, session="s"),
        [InstanceState("only", running=5)],
        document.parse(document.default(strategy)),
        0.99,
    )
    assert decision.instance == "only"


def test_a_session_alone_on_an_overloaded_instance_stays() -> None:
    busy = InstanceState("only", running=500, prefill_tokens=5_000_000)
    policy = document.parse(document.default("adaptive_v1"))
    assert decide(RoutingRequest(1_000, session="s", bound_to="only"), [busy], policy, 0.5).rule == "session"


def test_a_heavy_request_is_served_as_the_policy_requires() -> None:
    decision = decide(RoutingRequest(50_000), [InstanceState("a")], POLICY, 0.5)
    assert (decision.request_class, decision.flow) == ("heavy", POLICY["flow.heavy"])


def test_kv_usage_is_ignored_when_the_limit_is_one() -> None:
    policy = document.parse({"strategy": {"name": "least_requests"}, "load": {"kv_usage_max": 1}})
    full, empty = InstanceState("full", kv_usage=1.0), InstanceState("empty", running=1)
    assert decide(RoutingRequest(1_000), [full, empty], policy, 0.5).instance == "full"
