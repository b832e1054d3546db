"""Expectations: pass, fail, inconclusive, and the number of requests that would decide."""

import random

import msgspec
import pytest

from controlplane.evidence.experiments import running, services
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.record import Expectation
from controlplane.evidence.experiments.results import assemble, summarize
from controlplane.evidence.experiments.results.output.report import sentence
from controlplane.evidence.experiments.results.statistics import verdicts
from controlplane.evidence.experiments.results.statistics.pairs import Estimator
from controlplane.evidence.experiments.results.statistics.stats import ResampledEstimate
from controlplane.evidence.experiments.services import check
from controlplane.evidence.experiments.start.body import ExpectIn
from controlplane.evidence.experiments.tests.conftest import body, record
from controlplane.people.audit.services import Actor
from fleet import jobs

RELATIVE = {"metric": "ttft_p90_ms", "class": "all", "relative_to": "base", "max_ratio": 1.05}


def arms_of(n=200, **factors):
    """Arms whose TTFT is that of the base times a factor, with noise; with None as its factor, an arm refuses every
    fifth request."""
    draw = random.Random(1)
    base = [draw.lognormvariate(5, 0.5) for _ in range(n)]
    arms = {}
    for name, factor in {"base": 1.0, **factors}.items():
        values = [value * (factor or 0.5) * draw.uniform(0.9, 1.1) for value in base]
        arms[name] = {
            (1, i): record(i, outcome="refused", ttft_ms=None)
            if factor is None and i % 5 == 0
            else record(i, ttft_ms=value)
            for i, value in enumerate(values)
        }
    return arms


def judged(arms, *expect, slo=None):
    results = [{"name": name, **summarize.run_results(list(keyed.values()), [])} for name, keyed in arms.items()]
    items = [ExpectIn.model_validate(item).model_dump(by_alias=True) for item in expect]
    return verdicts.judge(msgspec.convert(items, list[Expectation]), results, Estimator(arms, slo or {}), lambda: None)


@pytest.mark.parametrize(("factor", "verdict"), [(0.8, "pass"), (1.4, "fail"), (1.04, "inconclusive"), (None, "fail")])
def test_a_ratio_passes_fails_or_is_inconclusive_and_refusing_never_helps(factor, verdict):
    (row,) = judged(arms_of(arm=factor), RELATIVE)
    assert (row["arm"], row["verdict"], row["passed"]) == ("arm", verdict, verdict == "pass")
    assert row["n"] == 200
    assert (row["needed_n"] is not None) == (verdict == "inconclusive")
    if factor is None:
        assert (row["value"], row["ratio"]) == (None, None)
        assert "falls on unanswered requests" in sentence(row)
    else:
        assert row["low"] < row["ratio"] < row["high"]


def test_the_estimated_number_of_requests_decides_it():
    needed = ResampledEstimate.normal(1.0, 0.05, 100).needed_n(1.02, 0.05)
    assert needed == pytest.approx(100 * (1.96 * 0.05 / 0.02) ** 2, rel=0.03)
    decided = ResampledEstimate.normal(1.0, 0.05 * (100 / needed) ** 0.5, needed)
    assert decided.interval(0.05)[1] == pytest.approx(1.02, abs=1e-4)
    assert ResampledEstimate.normal(1.0, 0.05, 100).needed_n(1.0, 0.05) is None
    (row,) = judged(arms_of(arm=1.0), {**RELATIVE, "max_ratio": 1.02})
    assert row["verdict"] == "inconclusive"
    assert 200 < row["needed_n"] < 20_000
    assert f"{row['needed_n']:,} requests would decide it, there are 200" in sentence(row)


def test_few_requests_decide_nothing():
    (row,) = judged(arms_of(n=19, arm=0.1), RELATIVE)
    assert (row["verdict"], row["needed_n"]) == ("inconclusive", 20)
    (row,) = judged(arms_of(arm=0.1), {**RELATIVE, "class": "heavy"})
    assert (row["verdict"], row["n"]) == ("inconclusive", None)


def test_more_expectations_widen_their_intervals():
    arms = arms_of(one=0.9, two=0.95, three=1.02)
    (alone,) = judged(arms, {**RELATIVE, "arm": "three"})
    together = judged(arms, RELATIVE)
    assert [row["level"] for row in together] == [pytest.approx(1 - 0.05 / 3, abs=1e-6), 0.975, 0.95]
    assert alone["level"] == 0.95
    assert verdicts.overall([row["verdict"] for row in together]) == "inconclusive"


def test_a_limit_on_the_value_compares_the_value_and_counts_refused_requests():
    arms = arms_of(arm=None)
    limit = {"metric": "ttft_p50_ms", "max": 1e5}
    assert [row["verdict"] for row in judged(arms, limit)] == ["pass", "pass"]
    assert [row["verdict"] for row in judged(arms, {**limit, "metric": "ttft_p90_ms"})] == ["pass", "fail"]
    (unknown,) = judged(arms, {**limit, "class": "heavy", "arm": "base"})
    assert (unknown["verdict"], unknown["low"], unknown["level"]) == ("fail", None, None)


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [({"max": 500.0}, "pass"), ({"max": 100.0}, "fail"), ({"max": 150.0}, "inconclusive"), ({"min": 1.0}, "pass")],
)
def test_a_limit_on_the_value_with_confidence_compares_its_interval(limits, verdict):
    (row,) = judged(arms_of(), {"metric": "ttft_p50_ms", "arm": "base", "confidence": 0.99, **limits})
    assert (row["verdict"], row["level"]) == (verdict, 0.99)
    assert row["low"] < row["value"] < row["high"]


def test_shares_and_goodput_have_ratios_and_a_baseline_of_zero_decides_nothing():
    slo = {"all": {"ttft_ms": 200.0}}
    arms = arms_of(arm=0.5)
    rows = judged(arms, {"metric": "goodput", "relative_to": "base", "min_ratio": 1.0}, slo=slo)
    assert rows[0]["verdict"] == "pass"
    (hits,) = judged(arms, {"metric": "hit_ratio", "arm": "arm", "confidence": 0.95, "min": 0.3, "max": 0.5})
    assert (hits["verdict"], hits["value"]) == ("pass", 0.4)
    (row,) = judged(arms, {"metric": "refused", "relative_to": "base", "max_ratio": 1.0})
    assert (row["verdict"], row["n"]) == ("inconclusive", None)


def test_one_failure_fails_the_verdict_and_one_inconclusive_answer_leaves_it_open():
    assert verdicts.overall(["pass", "inconclusive", "fail"]) == "fail"
    assert verdicts.overall(["pass", "inconclusive"]) == "inconclusive"
    assert verdicts.overall(["pass"]) == "pass"
    assert verdicts.overall([]) == "none"


@pytest.mark.parametrize(
    ("item", "field", "message"),
    [
        ({"metric": "ttft", "max": 1}, "metric", "allowed: ttft_p50_ms"),
        ({"metric": "goodput", "max": 1}, "metric", "needs `slo`"),
        ({**RELATIVE, "metric": "balance"}, "metric", "has no interval"),
        ({"arm": "nobody", "max": 1}, "arm", "arms are arm, base"),
        ({**RELATIVE, "relative_to": "nobody"}, "relative_to", "arms are arm, base"),
        ({**RELATIVE, "arm": "base"}, "relative_to", "needs another arm"),
        ({}, "max", "needs a min, a max, or both"),
        ({**RELATIVE, "max": 3}, "max", "not with relative_to"),
        ({"relative_to": "base"}, "max_ratio", "needs a min_ratio"),
        ({"max": 3, "max_ratio": 1}, "max_ratio", "needs relative_to"),
    ],
)
def test_an_invalid_expectation_is_refused_by_field(item, field, message):
    asked = ExpectIn.model_validate({"metric": "ttft_p90_ms", **item})
    (problem,) = check([asked], {"base", "arm"}, has_slo=False)
    assert problem.path == f"expect.0.{field}"
    assert message in problem.message


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"slo": {"all": {}}}, "slo.all", "needs ttft_ms, tpot_ms or e2e_ms"),
        ({"slo": {"all": {"ttft_ms": 0}}}, "slo.all.ttft_ms", "allowed is a number from 0.001"),
        ({"expect": [{**RELATIVE, "confidence": 95}]}, "expect.0.confidence", "from 0.5 to 0.9999"),
        ({"expect": [{**RELATIVE, "max_ratio": 0}]}, "expect.0.max_ratio", "from 0.01 to 100"),
    ],
)
def test_numbers_out_of_range_are_refused_by_path(ci, demo_pool, sent, changes, path, message):
    (fault,) = ci.post("/experiments", body(**changes)).json()["errors"]
    assert fault["path"] == path
    assert message in fault["message"]


@pytest.mark.django_db
def test_the_verdict_is_there_as_soon_as_the_experiment_is_done(ci, demo_pool, sent, data_dir, monkeypatch):
    asked = body(mode="twin", time_scale=1, duration_s=20, expect=[{"metric": "ttft_p90_ms", "max": 1e6}])
    number = ci.post("/experiments", asked).json()["id"]
    seen = []
    end = jobs.end
    monkeypatch.setattr(
        jobs, "end", lambda job, *given, **values: (end(job, *given, **values), seen.append(read(number)))
    )
    running.run_experiment(number)
    assert seen == [("done", "pass")]


def read(number):
    return Experiment.objects.values_list("status", "verdict").get(pk=number)


@pytest.mark.django_db
@pytest.mark.parametrize("cancelled", [True, False])
def test_an_experiment_cancelled_or_failing_while_its_results_are_made_says_so(
    ci, demo_pool, sent, data_dir, monkeypatch, cancelled
):
    number = ci.post("/experiments", body(mode="twin", time_scale=1, duration_s=20)).json()["id"]
    made = assemble.make

    def interrupted(experiment, runs, beat):
        if experiment.status != "done":
            return made(experiment, runs, beat)
        if not cancelled:
            raise ValueError("no such quantile")
        services.cancel_experiment(Experiment.objects.get(pk=number), Actor("user", "otto"))
        return made(experiment, runs, beat)

    monkeypatch.setattr(assemble, "make", interrupted)
    running.run_experiment(number)
    experiment = Experiment.objects.get(pk=number)
    expected = ("cancelled", "cancelled by otto") if cancelled else ("failed", "results: ValueError: no such quantile")
    assert (experiment.status, experiment.cause, experiment.verdict) == (*expected, "none")
