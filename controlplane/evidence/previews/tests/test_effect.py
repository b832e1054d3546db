"""The effect of a draft, from two outcomes: decisions in the same situation, latencies of the same requests."""

import pytest

from controlplane.evidence.previews.analysis.effect import effect_of
from controlplane.evidence.previews.tests.outcomes import outcome, refused, request

NAMES = ["demo-0", "demo-1"]


def effect(live, draft, **kv):
    return effect_of([outcome(*live)], [outcome(*draft, **kv)], NAMES)


def row(found, metric, name="all"):
    return next(row for row in found["classes"][name]["metrics"] if row["metric"] == metric)


def test_a_decision_counts_as_changed_if_the_draft_would_differ_in_the_same_situation():
    live = [request(i, shadow_changed=i < 3, request_class="heavy" if i < 2 else "warm") for i in range(20)]
    changed = effect(live, live)["changed"]
    assert (changed["decisions"], changed["of"], changed["share"]) == (3, 20, 0.15)
    assert changed["low"] == pytest.approx(0.0524, abs=1e-4)
    assert changed["high"] == pytest.approx(0.3604, abs=1e-4)
    assert changed["classes"] == {
        "warm": {"decisions": 1, "of": 18},
        "medium": {"decisions": 0, "of": 0},
        "heavy": {"decisions": 2, "of": 2},
    }


def test_latencies_of_the_same_requests_are_compared_in_ms():
    found = row(
        effect([request(i) for i in range(40)], [request(i, ttft_s=0.05 + i / 1000) for i in range(40)]), "ttft_p50_ms"
    )
    assert (found["live"], found["draft"], found["difference"]) == (119.5, 69.5, -50.0)
    assert found["relative"] == pytest.approx(-50 / 119.5, abs=1e-4)
    assert (found["low"], found["high"], found["n"], found["verdict"]) == (-50.0, -50.0, 40, "better")


def test_a_request_that_either_version_refuses_is_left_out_of_latencies_and_counted():
    live = [request(i) for i in range(30)]
    draft = [*(refused(i) for i in range(5)), *(request(i) for i in range(5, 30))]
    found = effect(live, draft)
    assert found["refused"] == {"live": 0, "draft": 5}
    assert row(found, "ttft_p50_ms")["n"] == 25
    assert row(found, "ttft_p50_ms")["difference"] == 0
    assert found["classes"]["all"]["n"] == 30


def test_unanswered_requests_have_no_latencies():
    found = effect([refused(0)], [refused(0)])
    assert row(found, "tpot_p99_ms") == {
        "metric": "tpot_p99_ms",
        **dict.fromkeys(("live", "draft", "difference", "low", "high", "relative", "relative_low", "relative_high")),
        "n": 0,
        "verdict": "too few requests",
    }
    assert found["hit_share"] == {"live": None, "draft": None}


def test_the_live_version_decides_the_class():
    live = [request(0, request_class="heavy"), request(1)]
    draft = [request(0, request_class="medium"), request(1)]
    classes = effect(live, draft)["classes"]
    assert {name: found["n"] for name, found in classes.items()} == {"all": 2, "warm": 1, "heavy": 1}


def test_few_requests_get_no_verdict():
    found = effect([request(i) for i in range(19)], [request(i, ttft_s=9.0) for i in range(19)])
    assert row(found, "ttft_p90_ms")["verdict"] == "too few requests"


def test_requests_are_counted_for_every_instance_of_the_fleet():
    live = [request(0), request(1)]
    found = effect(live, [request(0), request(1, instance="demo-1")])
    assert found["instances"] == [{"id": "demo-0", "live": 2, "draft": 1}, {"id": "demo-1", "live": 0, "draft": 1}]


def test_cached_share_and_kv_usage_are_reported_for_both():
    found = effect([request(0)], [request(0, cached_tokens=900)], kv_usage=(0.5, 0.7))
    assert found["hit_share"] == {"live": 0.4, "draft": 0.9}
    assert found["kv_usage"] == {"live": pytest.approx(0.3), "draft": pytest.approx(0.6)}


def test_the_requests_of_every_seed_are_compared_together():
    one = outcome(*(request(i, shadow_changed=True) for i in range(15)))
    two = outcome(*(request(i, seed=2) for i in range(15)))
    found = effect_of([one, two], [one, two], NAMES)
    assert (found["changed"]["decisions"], found["changed"]["of"]) == (15, 30)
    assert row(found, "e2e_p50_ms")["n"] == 30


def cached(draft_tokens, sessions):
    """Return outcomes with two requests per session; under the draft they have this many cached tokens, one value per
    session.
    """
    live = [request(at, session=f"s{at // 2}") for at in range(2 * sessions)]
    draft = [request(at, session=f"s{at // 2}", cached_tokens=draft_tokens[at // 2]) for at in range(2 * sessions)]
    return effect(live, draft)["saved_tokens_per_s"]


def test_saved_tokens_have_an_interval_over_sessions():
    sure = cached([500] * 20, 20)
    assert sure["low"] == sure["high"] == pytest.approx(40 * 100 / 19.5)
    spread = cached([1000, *[400] * 19], 20)
    assert spread["low"] < 0 < spread["high"]


def test_a_single_session_has_no_interval():
    assert cached([900], 1) is None
