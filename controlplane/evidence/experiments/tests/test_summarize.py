"""Summaries: records in, figures out."""

from pathlib import Path

import pytest
from django.conf import settings

from controlplane.evidence.experiments.record import RunFacts
from controlplane.evidence.experiments.results import summarize
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.validity import replay_warnings
from controlplane.evidence.experiments.tests.conftest import record


def test_counts_and_quantiles_cover_the_answered_requests_of_the_class():
    found = [record(i, ttft_ms=float(i)) for i in range(1, 5)]
    found += [record(5, outcome="refused", ttft_ms=None), record(6, outcome="error", ttft_ms=None)]
    found += [record(n, outcome="client_error", ttft_ms=None) for n in (8, 9)]
    found += [record(7, trace_class="heavy", ttft_ms=900.0)]
    warm = summarize.class_results(summarize.of_class(found, "warm"))
    assert [warm[key] for key in ("n", "ok", "refused", "errors", "client_errors")] == [8, 4, 1, 1, 2]
    assert (warm["ttft_p50_ms"], warm["low_n"]) == (2.5, True)
    assert summarize.class_results(summarize.of_class(found, "heavy"))["ttft_p99_ms"] == 900
    assert summarize.class_results(summarize.of_class(found, "medium"))["ttft_p50_ms"] is None


def test_the_hit_ratio_weighs_by_tokens_and_ignores_unreported_ones():
    found = [record(0, prompt_tokens=1000, cached_tokens=0), record(1, prompt_tokens=3000, cached_tokens=3000)]
    found.append(record(2, prompt_tokens=9000, cached_tokens=None))
    assert summarize.class_results(found)["hit_ratio"] == 0.75
    assert summarize.class_results([])["hit_ratio"] is None


def test_balance_includes_instances_without_requests():
    found = [record(i, instance="a", prompt_tokens=100) for i in range(4)]
    assert summarize.balance(found, ["a", "b"]) == (2.0, {"a": 400, "b": 0})
    assert summarize.balance([], ["a"]) == (None, {"a": 0})


def test_tokens_per_second_are_in_the_engines_time():
    found = [record(0, sent_s=0.0, e2e_ms=1000.0, output_tokens=50), record(1, sent_s=1.0, e2e_ms=1000.0)]
    assert summarize.output_tokens_per_s(found) == 50


def facts(**changes):
    return RunFacts(**{"sim_lag_p99_s": 0.0005, "machine_busy": 0.5} | changes)


@pytest.mark.parametrize(
    ("changed", "late_ms", "expected"),
    [
        ({}, 0.5, []),
        ({"machine_busy": 0.99}, 0.5, ["99 % busy"]),
        ({"sim_lag_p99_s": 0.05}, 0.5, ["engines ran late: p99 500 ms"]),
        ({}, 50.0, ["sent requests late: p99 500 ms"]),
        ({"sim_lag_p99_s": None, "machine_busy": None}, 0.5, []),
    ],
)
def test_a_machine_that_is_too_slow_is_reported(changed, late_ms, expected):
    own = summarize.run_results([record(i, late_wall_ms=late_ms) for i in range(30)], ["exp-0"])
    told = replay_warnings(own, facts(**changed), time_scale=10)
    assert len(told) == len(expected)
    assert all(part in text for part, text in zip(expected, told, strict=True))


def test_an_arm_whose_answers_came_in_one_read_has_no_tpot_():
    at_once = [record(i, tpot_ms=None, output_tokens=8) for i in range(30)]
    arms = [
        {"name": name, **summarize.run_results(found, [])}
        for name, found in (("calm", [record(i) for i in range(30)]), ("busy", at_once))
    ]
    assert arms[1]["classes"]["all"]["tpot_p50_ms"] is None
    (told,) = replay_warnings(arms[1], facts(), 1)
    assert told.startswith("all tokens of 30 of 30 answers came in one read")


def test_an_answer_of_one_token_gives_no_warning():
    found = [record(i, tpot_ms=None, output_tokens=1) for i in range(30)]
    assert replay_warnings(summarize.run_results(found, []), facts(), 1) == []


def test_a_policy_that_refuses_requests_gets_a_warning():
    found = [record(i) for i in range(9)] + [record(9, outcome="refused", ttft_ms=None)]
    told = replay_warnings(summarize.run_results(found, []), facts(), 1)
    assert "1 of 10 requests were refused or failed" in told[0]


def test_every_metric_is_named_in_the_document_quantiles_by_example():
    document = (Path(settings.BASE_DIR) / "docs" / "experiments.md").read_text()
    named = [key for key, metric in METRICS.items() if metric.quantile is None]
    assert [key for key in named if f"`{key}`" not in document] == []
