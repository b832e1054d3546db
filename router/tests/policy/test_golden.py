"""Every strategy decides the golden cases as computed by hand from its formula."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import Decision, InstanceState, Rates, RoutingRequest

GOLDEN = Path(__file__).parent / "golden"
FILES = {path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}
CASES = [
    pytest.param(strategy, case, id=f"{strategy}: {case['name']}")
    for strategy, file in FILES.items()
    for case in file["cases"]
]


def decision_of(strategy: str, case: dict[str, Any]) -> Decision:
    overrides = {"classes.heavy_new_tokens": 20_000} | case.get("overrides", {})  # as the cases were computed
    policy = document.parse(document.apply_overrides(document.default(strategy), overrides))
    instances = [InstanceState(**facts) for facts in case["instances"]]
    request = dict(case["request"])
    rates = Rates(**request.pop("rates", {}))
    return decide(RoutingRequest(**request, rates=rates), instances, policy, case.get("draw", 0.5))


@pytest.mark.parametrize(("strategy", "case"), CASES)
def test_the_decision_is_the_one_computed_by_hand(strategy: str, case: dict[str, Any]) -> None:
    decision = decision_of(strategy, case)
    expect = dict(case["expect"])
    scores, refused = expect.pop("scores", {}), expect.pop("refused", None)
    facts = {
        "instance": decision.instance,
        "rule": decision.rule,
        "class": decision.request_class,
        "flow": decision.flow,
        "prefill": decision.prefill,
        "cached_tokens": decision.cached_tokens,
        "new_tokens": decision.new_tokens,
        "reasons": list(decision.reasons),
    }
    assert {key: facts[key] for key in expect} == expect
    assert {one.id: one.score for one in decision.candidates if one.id in scores} == scores
    if refused is not None:
        assert {one.id: one.refused for one in decision.candidates if one.refused} == refused


def test_every_strategy_has_golden_cases_that_name_their_source() -> None:
    assert set(FILES) == set(STRATEGIES)
    assert all(file["source"] for file in FILES.values())
    assert all(case["worked"] for file in FILES.values() for case in file["cases"])


def test_every_decision_gives_a_reason() -> None:
    for strategy, file in FILES.items():
        for case in file["cases"]:
            assert decision_of(strategy, case).reasons
