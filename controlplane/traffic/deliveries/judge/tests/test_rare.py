"""The classes that a canary defers to a later step, and those for which it waits."""

from typing import Any

import pytest
from msgspec.structs import replace

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.look import is_fine
from controlplane.traffic.deliveries.judge.sums import Evidence
from controlplane.traffic.deliveries.judge.tests.traffic import evidence
from controlplane.traffic.deliveries.judge.verdicts import deferred, judge
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from router.contract.redis.delivery import Moments

TENTH, HALF = ({"mode": "canary", "share": share, "for_s": 600} for share in (0.1, 0.5))
BACK = {"mode": "switchback", "block_s": 300, "pairs": 4}
RARE = (0.55, 0.40, 0.05)  # shares of warm, medium and heavy requests


def seen(of: Evidence, *steps: dict[str, Any], step: int = 0, **more: Any) -> dict[str, GuardFinding]:
    """Return the findings for a candidate with 10 % of the requests."""
    plan = parse_plan({"steps": [*(steps or (TENTH, HALF)), {"mode": "full"}], **more}, pools=["demo"])
    found = deferred(judge(of, plan, 0.1), of, plan, step, 0.1)
    return {f"{each.metric} {each.request_class}".strip(): each for each in found}


def hanging(of: Evidence) -> Evidence:
    """Findings in which no heavy request of the candidate has a first byte."""
    heavy = {
        cell: replace(each, ttft=Moments(), slow=each.streamed) for cell, each in of.of("candidate", "heavy").items()
    }
    return Evidence({**of.cells, "candidate": {**of.cells["candidate"], "heavy": heavy}})


@pytest.mark.parametrize(
    ("steps", "where"), [((TENTH, HALF), "at 50 %"), ((TENTH, BACK), "in the switchback")], ids=["canary", "switchback"]
)
def test_a_rare_class_is_deferred_to_the_next_step_that_judges(steps: tuple[dict[str, Any], ...], where: str) -> None:
    found = seen(evidence(4_000, mix=RARE), *steps)
    assert {name for name, each in found.items() if each.verdict == "deferred"} == {"ttft heavy"}
    few = "heavy TTFT: 29 of 30 requests in the candidate's arm"
    assert found["ttft heavy"].text == f"{few}; too rare at 10 % to wait for: judged {where}"
    assert is_fine(list(found.values()))


def test_a_rare_class_is_deferred_even_while_its_interval_is_wide() -> None:
    found = seen(evidence(7_000, mix=RARE, factors={"heavy": 1.15}))["ttft heavy"]
    assert (found.verdict, min(found.n) > 30, found.estimate is None) == ("deferred", True, False)
    assert found.text.startswith("heavy TTFT 1.09× (0.83–1.36×): 1.10× not excluded; too rare at 10 % to wait for")


@pytest.mark.parametrize(
    ("of", "steps", "step"),
    [
        ({"mix": RARE}, (TENTH,), 0),
        ({"mix": RARE}, (TENTH, HALF), 1),
        ({"mix": (0.5, 0.38, 0.12)}, (TENTH, HALF), 0),
        ({"mix": RARE, "requests": 290}, (TENTH, HALF), 0),
    ],
    ids=["nothing follows", "last step", "not rare", "too few requests to be called rare"],
)
def test_the_judge_waits_for_other_steps_and_classes(
    of: dict[str, Any], steps: tuple[dict[str, Any], ...], step: int
) -> None:
    found = seen(evidence(**{"requests": 1_500, **of}), *steps, step=step)["ttft heavy"]
    assert found.verdict == "no_data"
    assert found.text.endswith("of 30 requests in the candidate's arm")


def test_the_judge_waits_for_a_rare_class_that_points_to_harm() -> None:
    found = seen(evidence(4_000, mix=RARE, factors={"heavy": 1.6}))["ttft heavy"]
    assert found.verdict == "no_data"
    assert found.text.endswith("; this step waits for it: heavy TTFT 1.58× so far")


def test_the_judge_waits_for_a_rare_class_whose_requests_hang() -> None:
    found = seen(hanging(evidence(3_000, mix=RARE)))["ttft heavy"]
    assert found.verdict == "no_data"
    assert "this step waits for it: slow heavy requests +" in found.text


def test_harm_to_a_rare_class_fails_as_before() -> None:
    assert seen(evidence(12_000, mix=RARE, factors={"heavy": 1.6}))["ttft heavy"].verdict == "fail"


def test_the_judge_waits_for_at_least_one_comparison() -> None:
    guards = [{"metric": "ttft", "classes": ["heavy"], "worse": 0.1, "fine": 0.25}]
    assert seen(evidence(4_000, mix=RARE), guards=guards)["ttft heavy"].verdict == "no_data"
