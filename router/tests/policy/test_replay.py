"""A decision that is repeated from its receipt has the same result."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from router.contract.redis.receipt import Receipt
from router.policy import replay
from router.policy.candidates import Candidates
from router.policy.columns import RecordedColumns
from router.policy.decide import decide
from router.policy.replay import NotReplayable, ReplayedDecision
from router.policy.schema import document
from router.policy.types import Candidate, Decision, InstanceState, ParsedPolicy, Rates, RoutingRequest
from router.tests.policy.test_decide_properties import POLICIES, REQUESTS, Situation, fleets
from router.tests.values import receipt_of

POLICY = document.parse(document.default("adaptive_v1"))


def receipt(request: RoutingRequest, decision: Decision) -> Receipt:
    """Return the receipt as the router writes it and Redis returns it."""
    assert isinstance(decision.candidates, Candidates)
    made = {
        "strategy": decision.strategy,
        "class": decision.request_class,
        "instance": decision.instance or None,
        "rule": decision.rule,
        "reasons": list(decision.reasons),
        "predicted_cached": decision.cached_tokens,
        "new_tokens": decision.new_tokens,
        "prompt_tokens": request.prompt_tokens,
        "session": request.session,
        "inputs": decision.candidates.inputs(),
        "candidates": decision.candidates.columns(),
    }
    return receipt_of(json.loads(json.dumps(made)))


def again(kept: Receipt, policy: ParsedPolicy) -> ReplayedDecision:
    return replay.outcome(replay.situation(kept).decide(policy))


@st.composite
def tiered(draw: st.DrawFn) -> RoutingRequest:
    """Return a request; for some requests, with the findings of the exact index."""
    request = draw(REQUESTS)
    if draw(st.booleans()):
        return request
    tiers = {name: (draw(st.integers(0, 900)), 64, 16) for name in ("demo-1", "demo-4")}
    values = {field: getattr(request, field) for field in request.__slots__}
    return RoutingRequest(
        **{**values, "held": {name: sum(three) for name, three in tiers.items()}, "held_tiers": tiers}
    )


SITUATIONS = st.tuples(tiered(), fleets(), st.sampled_from(POLICIES), st.floats(0, 1, exclude_max=True))


@given(SITUATIONS)
def test_the_same_policy_repeats_its_decision(situation: Situation) -> None:
    request, instances, policy, draw = situation
    kept = receipt(request, decide(request, instances, policy, draw))
    assert replay.recorded(kept).differences(again(kept, policy)) == []


@given(SITUATIONS, st.sampled_from(POLICIES))
def test_another_policy_decides_as_it_would_have_then(situation: Situation, other: ParsedPolicy) -> None:
    request, instances, policy, draw = situation
    kept = receipt(request, decide(request, instances, policy, draw))
    assert again(kept, other) == replay.outcome(decide(request, instances, other, draw))


def example() -> Receipt:
    instances = [
        InstanceState("a", running=3, kv_usage=0.5, connector="nixl"),
        InstanceState("b", running=3, kv_usage=0.25, connector="nixl", refused="draining"),
        InstanceState("c", running=3, kv_usage=0.99, connector="nixl"),
    ]
    request = RoutingRequest(
        50_000, session="s", held={"a": 160}, held_tiers={"a": (128, 32, 0)}, rates=Rates(9_000.0), turn=7
    )
    return receipt(request, decide(request, instances, POLICY, 0.25))


def test_a_receipt_keeps_columns_and_leaves_out_defaults() -> None:
    kept = example()
    assert kept.inputs == {
        "turn": 7,
        "draw": 0.25,
        "rates": [9_000.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    }
    assert kept.candidates == {
        "id": ["a", "b", "c"],
        "cached": [160, 0, 0],
        "tiers": [[128, 32, 0], None, None],
        "running": 3,
        "waiting": 0,
        "decodes": 0,
        "prefill_tokens": 0,
        "kv_usage": [0.5, 0.25, 0.99],
        "kv_tokens": 0,
        "block_size": 16,
        "role": "both",
        "connector": "nixl",
        "score": [0, None, None],
        "refused": {"1": "draining"},
        "aside": {"2": "KV usage 99.0 % is above 95.0 %"},
    }


def test_a_decision_about_a_pool_without_instances_can_be_repeated() -> None:
    request = RoutingRequest(10, bound_to="gone", history_tokens=5, prefix_key=9)
    kept = receipt(request, decide(request, [], POLICY, 0.5))
    assert kept.candidates == {"id": []}
    assert replay.recorded(kept).differences(again(kept, POLICY)) == []
    assert kept.inputs == {"turn": 0, "draw": 0.5, "bound_to": "gone", "history_tokens": 5, "prefix_key": 9}


def test_candidates_are_returned_row_by_row() -> None:
    kept = example()
    columns = RecordedColumns(kept.candidates)
    assert columns.candidates(50_000)[0] == Candidate("a", 160, 49_840, 0)
    first = columns.instances()[0]
    assert (first.running, first.kv_usage, first.refused) == (3, 0.5, "")
    assert replay.recorded(kept).candidates[1] == Candidate("b", 0, 50_000, None, "draining")


def test_differences_are_reported_by_name() -> None:
    kept = example()
    told = replay.recorded(structs.replace(kept, instance="b", rule="session"))
    assert told.differences(again(kept, POLICY)) == ["instance", "rule"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rule": None}, "was refused before a decision"),
        ({"inputs": None}, "an older router wrote it"),
        ({"candidates": [{"id": "a"}]}, "an older router wrote it"),
        ({"inputs": {"turn": 1}}, "KeyError"),
        ({"prompt_tokens": None}, "an older router wrote it"),
        ({"inputs": {"turn": 1, "draw": "x"}}, "ValueError"),
        ({"inputs": {"turn": 1, "draw": 0.5, "rates": 7}}, "TypeError"),
    ],
)
def test_a_receipt_that_cannot_be_replayed_is_explained(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(NotReplayable, match=why):
        replay.situation(structs.replace(example(), **changes))


def test_a_column_that_is_too_short_is_rejected() -> None:
    kept = example()
    kept.candidates["kv_usage"] = [0.5]
    with pytest.raises(NotReplayable, match="1 values for 3 candidates"):
        replay.situation(kept)
