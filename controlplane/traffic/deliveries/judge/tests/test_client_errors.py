"""Errors of clients are not caused by a version: they neither roll one back nor hide failures.
The router's own code counts the requests, from the engine's status to the tallies and windows that the judge reads.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.traffic.deliveries.judge import pools
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.look import Situation, propose
from controlplane.traffic.deliveries.judge.memory import Memory
from controlplane.traffic.deliveries.judge.pools import LookInputs
from controlplane.traffic.deliveries.judge.sums import Traffic
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.states import State, Trigger
from router.contract.answer import verdict
from router.contract.redis.delivery import Arm, DeliveryTally
from router.contract.redis.router_status import RouterStatus, ServedPool
from router.pool.rollout import Assignment, SplitState
from router.request.call import Call
from router.telemetry.delivery_tallies import DeliveryTallies
from router.telemetry.window import LatencyWindow
from router.tests.pool.splits import split

NOW = 1_000.0
STEPS = [{"mode": "canary", "share": 0.5, "for_s": 600}, {"mode": "full", "bake_s": 600}]
GUARDS = [{"metric": "ttft", "worse": 0.1, "fine": 0.25}, {"metric": "errors"}, {"metric": "refused"}]
SHARES = [
    {"metric": f"pool.{share}_share", "class": "warm", "above": 0.05, "for_s": 5} for share in ("errors", "refused")
]
WELL = {"candidate": [200] * 60, "control": [200] * 60}


def ended(number: int, status: int, arm: Arm) -> Call:
    call = Call(f"r{number}", "/v1/completions", 0.0, 0.0)
    call.request = SimpleNamespace(prompt=SimpleNamespace(stream=False))  # type: ignore[assignment]
    call.prediction.prompt_tokens = 3_000
    call.outcome.close(verdict.of_status(status))
    call.assigned = Assignment(7, 3, arm, number % 64, number, True, "warm")
    return call


def traffic(answers: dict[str, list[int]]) -> Traffic:
    """`answers` are the engines' statuses by arm; every request has its own session."""
    state = SplitState(split(), None)
    state.counts_from = 0.0
    tallies, window = DeliveryTallies(state), LatencyWindow()
    arms: tuple[Arm, ...] = ("candidate", "control")
    for arm in arms:
        for number, status in enumerate(answers[arm]):
            call = ended(number, status, arm)
            assert call.assigned is not None
            tallies.decided(call, call.assigned)
            tallies.ended(call, call.assigned)
            window.ended(call, NOW)
    tally = DeliveryTally(
        **{"delivery": 7, "generation": 3, "pool": "demo", "router": "r1", "life": "a", "at": NOW, "written": 1},
        cells={arm: {"warm": tallies.read(arm, "warm")} for arm in arms},
    )
    served = ServedPool(policy="default", version=1, generation=3, split="on")
    status = RouterStatus(id="r1", at=NOW, pools={"demo": served}, classes={"demo": {"warm": window.read(NOW)}})
    return Traffic((tally,), (), {"r1": status})


def look(answers: dict[str, list[int]], state: State = State.STEP) -> tuple[list[GuardFinding], Any]:
    """Return the decided findings and the transition of a look 10 s after the shares rose."""
    plan = parse_plan({"steps": STEPS, "guards": [*GUARDS, *SHARES]}, pools=["demo"])
    at, memory = Situation(plan, state, int(state is State.BAKING), 60.0), Memory()
    inputs = LookInputs(3, 0.5, (), lambda pool: None)
    pools.findings_of(at, inputs, "demo", traffic(WELL), memory, NOW - 200)
    for now in (NOW - 10, NOW):
        findings = pools.findings_of(at, inputs, "demo", traffic(answers), memory, now)
    proposed = propose(at, findings, memory, NOW)
    return [finding for finding in findings if finding.verdict == "fail"], proposed


def bad(status: int, times: int = 5, *, beside: int = 60) -> dict[str, list[int]]:
    return {**WELL, "candidate": [200] * beside + [status] * times}


@pytest.mark.parametrize("status", [400, 413, 415])
@pytest.mark.parametrize("times", [5, 500])
@pytest.mark.parametrize("state", [State.STEP, State.BAKING])
def test_prompts_that_are_too_long_fail_no_guard(status: int, times: int, state: State) -> None:
    failed, proposal = look(bad(status, times), state)
    assert failed == []
    assert proposal is None or proposal.what is not Trigger.FAIL


@pytest.mark.parametrize("state", [State.STEP, State.BAKING])
def test_failing_engines_roll_the_version_back(state: State) -> None:
    failed, proposal = look(bad(500, 8), state)
    assert {finding.metric for finding in failed} >= {"breaker", "pool.errors_share"}
    assert proposal.what is Trigger.FAIL


@pytest.mark.parametrize("state", [State.STEP, State.BAKING])
def test_client_errors_do_not_hide_failures(state: State) -> None:
    answers = {arm: [*statuses, *[400] * 2_000] for arm, statuses in bad(500, 8).items()}
    failed, proposal = look(answers, state)
    assert {finding.metric for finding in failed} == {finding.metric for finding in look(bad(500, 8), state)[0]}
    assert proposal.what is Trigger.FAIL


def test_refusals_are_counted_separately_from_client_errors() -> None:
    failed, _ = look({"candidate": [200] * 60 + [429] * 20 + [400] * 900, "control": [200] * 60 + [429] * 20})
    assert [finding.metric for finding in failed] == ["pool.refused_share"]
