"""Candidates are built on first access and then behave like an ordinary sequence."""

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.types import Candidate, Decision, InstanceState, RoutingRequest


def decision() -> Decision:
    instances = [
        InstanceState("a", cached_tokens=600, running=3),
        InstanceState("b", refused="draining"),
        InstanceState("c", running=1),
    ]
    return decide(RoutingRequest(1_000), instances, document.parse(document.default("least_requests")), 0.5)


def test_candidates_carry_cache_score_and_refusal_in_the_given_order() -> None:
    expected = (Candidate("a", 600, 400, 3), Candidate("b", 0, 1_000, None, "draining"), Candidate("c", 0, 1_000, 1))
    assert tuple(decision().candidates) == expected
    assert decision().candidates == expected
    assert repr(decision().candidates) == repr(expected)


def test_candidates_can_be_counted_indexed_and_sliced() -> None:
    candidates = decision().candidates
    assert len(candidates) == 3
    assert candidates[2].id == "c"
    assert [one.id for one in candidates[:2]] == ["a", "b"]


def test_equal_decisions_are_equal_and_hash_alike() -> None:
    assert decision() == decision()
    assert hash(decision().candidates) == hash(decision().candidates)
    assert decision().candidates != 5
