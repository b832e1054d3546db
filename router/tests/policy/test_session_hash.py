"""A session's hash chooses its instance: evenly, and almost unaffected by instances that join or leave."""

from collections import Counter

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.types import Decision, InstanceState, RoutingRequest

POLICY = document.parse(document.default("session_sticky"))
FLEET = [InstanceState(f"demo-{number}") for number in range(8)]
SESSIONS = [f"session {number}" for number in range(4_000)]


def decided(session: str, instances: list[InstanceState]) -> Decision:
    return decide(RoutingRequest(1_000, session=session), instances, POLICY, 0.5)


def test_the_rule_names_the_session_hash() -> None:
    decision = decided("s", FLEET)
    assert decision.rule == "session_hash"
    assert all(one.score is not None and 0 <= one.score <= 1 for one in decision.candidates)


def test_the_choice_is_the_same_in_every_process() -> None:
    """Routers that share nothing agree; the expected names were recorded once."""
    assert [decided(session, FLEET).instance for session in ("a", "b", "c", "ü", "\ud800")] == [
        "demo-4",
        "demo-2",
        "demo-4",
        "demo-0",
        "demo-5",
    ]


def test_load_and_draw_do_not_matter() -> None:
    busy = [InstanceState(one.id, running=100 - number) for number, one in enumerate(FLEET)]
    assert decide(RoutingRequest(1_000, session="s"), busy, POLICY, 0.9).instance == decided("s", FLEET).instance


def test_sessions_are_spread_evenly() -> None:
    counts = Counter(decided(session, FLEET).instance for session in SESSIONS)
    assert len(counts) == 8
    # 500 each; five standard deviations are 5·√(4000·⅛·⅞) ≈ 105.
    assert all(395 <= count <= 605 for count in counts.values())


def test_an_instance_that_leaves_moves_only_its_own_sessions() -> None:
    for session in SESSIONS[:500]:
        before = decided(session, FLEET).instance
        after = decided(session, FLEET[:-1]).instance
        assert after == before or before == "demo-7"
