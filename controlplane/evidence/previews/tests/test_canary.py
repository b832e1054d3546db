"""The findings that a delivery's guards would have made about the draft, beside the truth."""

import json
import random

import pytest

from controlplane.evidence.previews.analysis.canary import PLAN, SHARE, arms, seen
from controlplane.evidence.previews.analysis.compute import PreviewInputs, compute, simulated
from controlplane.evidence.previews.analysis.tallies import Tallies, answered, arm_and_cell
from controlplane.evidence.previews.tests.outcomes import refused, request
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.traces.types import LoadedTrace
from controlplane.evidence.twin.simulation.tests.builders import fleet, policy


def played(count: int = 3_000, factor: float = 1.0, session: int = 1):
    """Play the canary. `session` is the number of requests per session; requests of the candidate take `factor` times
    as long.
    """
    draw, made = random.Random(1), []
    for index in range(count):
        key = f"s{index // session}"
        candidate, _ = arm_and_cell("preview", key, SHARE)
        ttft_s = 0.1 * draw.lognormvariate(0, 0.3) * (factor if candidate else 1.0)
        made.append(request(index, candidate=candidate, key=key, arm_class="warm", ttft_s=ttft_s))
    return made


def both(count: int = 600, factor: float = 1.0):
    draw = random.Random(2)
    rows = [request(index, ttft_s=0.1 * draw.lognormvariate(0, 0.3)) for index in range(count)]
    return [(row, request(row.index, ttft_s=row.ttft_s * factor)) for row in rows]


def guards(found):
    return {f"{each['metric']} {each['class']}".strip(): each for each in found["guards"]}


def test_every_default_guard_is_there_with_the_truth():
    found = guards(seen(played(factor=1.5), both(factor=1.2)))
    assert set(found) == {
        *(f"{metric} {name}" for metric in ("ttft", "slow") for name in ("warm", "medium", "heavy")),
        *("tpot warm", "errors", "refused"),
    }
    assert found["ttft warm"]["verdict"] == "fail"
    assert found["ttft warm"]["estimate"] == pytest.approx(0.5, abs=0.1)
    assert found["ttft warm"]["truth"] == pytest.approx(0.2, abs=1e-6)
    assert found["tpot warm"]["truth"] == 0.0
    assert found["errors"]["truth"] is None


def test_the_truth_of_slow_is_a_difference_of_shares():
    assert guards(seen(played(), both(factor=2.0)))["slow warm"]["truth"] > 0.5
    assert guards(seen(played(), both()))["slow warm"]["truth"] == 0.0


def test_a_class_without_requests_has_no_truth():
    found = guards(seen(played(), both()))
    assert found["ttft heavy"]["truth"] is None
    assert found["slow heavy"]["truth"] is None


def test_without_a_played_load_the_canary_has_no_data():
    found = seen([], [])
    assert (found["requests"], found["duration_s"]) == (0, 0.0)
    assert {each["verdict"] for each in found["guards"] if each["metric"] in ("ttft", "tpot", "slow")} == {"no_data"}


def test_a_canary_result_is_json():
    json.dumps(seen(played(factor=1.5), both()), allow_nan=False)


def test_tallies_count_sessions_once():
    """A hundred sessions of three requests; one of them is refused twice."""
    candidate = arm_and_cell("preview", "s0", SHARE)[0]
    turned_away = [refused(300 + n, key="s0", arm_class="warm", candidate=candidate) for n in range(2)]
    tallies = Tallies({})
    for one in answered([*played(300, session=3), *turned_away], "x"):
        tallies.add(one)
    totals = [tallies.evidence().total(arm) for arm in ("candidate", "control")]
    assert sum(each.sessions for each in totals) == 100
    assert sum(each.refused for each in totals) == 1
    assert sum(each.turned_away for each in totals) == 2
    assert sum(each.ended for each in totals) == 302


def test_an_error_counts_as_failed():
    tallies = Tallies({})
    for one in answered([request(n, key="s0", arm_class="warm", outcome="error", ttft_s=None) for n in range(2)], "x"):
        tallies.add(one)
    total = tallies.evidence().total("control")
    assert (total.failed, total.errors, total.ttft.n) == (2, 1, 0)


def test_a_prompt_that_no_engine_can_hold_counts_as_nobodys_failure():
    tallies = Tallies({})
    for one in answered([request(1, key="s0", arm_class="warm", outcome="client_error", ttft_s=None)], "x"):
        tallies.add(one)
    total = tallies.evidence().total("control")
    assert (total.ended, total.judged, total.client_errors, total.failed, total.refused) == (1, 0, 1, 0, 0)


def test_a_preview_simulates_the_canary_once():
    trace = generate(3, 120.0, 4.0)
    few = LoadedTrace(trace.format, trace.requests[:200], trace.pacing)
    draft, told = policy("round_robin"), []
    job = PreviewInputs(fleet(3), "demo", policy("lpwl"), ("default", 1), draft, ((1, few),))
    computed = compute(job, told.append)
    assert told[-1] == simulated(1, len(few.requests))
    assert computed.effect["canary"]["requests"] == len(few.requests)
    assert computed.effect["canary"]["share"] == SHARE == PLAN.steps[0].share
    assert 0.02 < sum(arms(draft).takes(f"s{n}", 0.0) for n in range(500)) / 500 < 0.2
