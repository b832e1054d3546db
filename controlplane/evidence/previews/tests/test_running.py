"""Computing a preview: its result and its cautions, progress, cancelling, and every way to fail."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.doors.jobs import expire
from controlplane.evidence.previews import display, policy_job, running, services
from controlplane.evidence.previews.analysis.compute import Computed, FirstAnswer
from controlplane.evidence.previews.body import PreviewIn
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.selectors import LATER_FIELDS, as_dict
from controlplane.evidence.previews.tests.conftest import OTTO
from fleet import jobs, subprocess
from fleet.jobs import CANCELLED, DONE, FAILED, QUEUED, RUNNING

pytestmark = pytest.mark.usefixtures("sent")
RATES = {"live": 900.0, "draft": 800.0}
NOTHING = Computed({"classes": {"all": {"n": 200, "metrics": []}}, "new_tokens_per_s": RATES}, None, (), ())


@pytest.fixture
def in_this_process(monkeypatch):
    """Computes in this process instead of a separate one."""
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda function, job, beat, take: function(job, take))


@pytest.fixture
def preview(policy, draft):
    return services.start(policy, OTTO, PreviewIn(max_requests=40))


def answer(monkeypatch, act):
    """Run `act` instead of the computation."""
    monkeypatch.setattr(subprocess, "run_in_subprocess", lambda function, job, beat, take: act(beat, take))


def fail_with(error):
    def act(*_):
        raise error

    return act


def run(preview):
    running.run_preview(preview.pk)
    preview.refresh_from_db()
    return as_dict(preview)


def test_a_preview_ends_with_the_effect_of_the_draft(preview, in_this_process):
    found = run(preview)
    assert (found["status"], found["cause"], found["done"]) == (DONE, "", found["total"])
    assert found["result"]["changed"]["of"] == found["result"]["classes"]["all"]["n"] == 40
    assert [one["id"] for one in found["result"]["instances"]] == ["demo-0", "demo-1"]
    assert sum(one["live"] for one in found["result"]["instances"]) == 40
    assert found["twin"]["basis"] == "profile"
    assert found["twin"]["about"]
    assert found["twin"]["deviation"] is None


def test_the_same_preview_computed_again_is_the_same(policy, draft, preview, in_this_process):
    first = run(preview)["result"]
    preview.delete()
    assert run(services.start(policy, OTTO, PreviewIn(max_requests=40)))["result"] == first


def test_each_seed_is_simulated(policy, draft, in_this_process):
    made = services.start(policy, OTTO, PreviewIn(max_requests=30, seeds=(1, 2)))
    found = run(made)
    assert (found["total"], found["done"]) == (150, 150)
    assert found["result"]["classes"]["all"]["n"] == 60


def test_doubts_are_reported(preview, in_this_process):
    codes = [one["code"] for one in run(preview)["trust"]]
    assert "not_recorded" in codes
    assert "few_requests" in codes


def test_the_twin_is_compared_with_what_routers_measured(policy, draft, record, in_this_process):
    record(220, policy="default", version=1, ttft_ms=1.0)
    found = run(services.start(policy, OTTO))
    deviation = found["twin"]["deviation"]
    assert (deviation["measured"], deviation["n"]) == (1.0, 110)
    assert deviation["twin"] > 10
    assert "twin_off" in [one["code"] for one in found["trust"]]


def test_traffic_of_another_model_is_reported(policy, draft, record, in_this_process):
    record(200, model="another")
    assert "other_model" in [one["code"] for one in run(services.start(policy, OTTO))["trust"]]


def test_effects_that_the_twin_leaves_out_are_reported(preview, monkeypatch):
    answer(monkeypatch, lambda *_: replace(NOTHING, not_modelled=("transfers",), versions=(("default", 7),)))
    texts = [one["text"] for one in run(preview)["trust"]]
    assert "transfers" in texts
    assert any("default v7" in text for text in texts)


def test_progress_is_written_while_it_runs(preview, monkeypatch):
    seen = []

    def act(beat, take):
        take(17)
        beat()
        preview.refresh_from_db()
        seen.append((preview.status, preview.done))
        return NOTHING

    answer(monkeypatch, act)
    run(preview)
    assert seen == [(RUNNING, 17)]


def test_a_preview_cancelled_while_it_runs_stops_at_the_next_heartbeat(preview, monkeypatch):
    monkeypatch.setattr(jobs, "BEAT_S", 0.0)

    def act(beat, _):
        policy_job.cancel(preview, OTTO)
        beat()
        raise AssertionError("it goes on")

    answer(monkeypatch, act)
    found = run(preview)
    assert (found["status"], found["cause"], found["result"]) == (CANCELLED, "cancelled by otto", None)


def test_the_first_answer_is_shown_until_the_complete_one_is_there(preview, monkeypatch):
    first, seen = FirstAnswer({"classes": {"all": {"n": 500}}}), []

    def act(_, take):
        take(first)
        preview.refresh_from_db()
        seen.append(preview.first_result)
        return NOTHING

    answer(monkeypatch, act)
    found = run(preview)
    assert (seen, found["first_result"], found["status"]) == ([first.effect], None, DONE)


def test_a_preview_cancelled_after_the_first_answer_keeps_it(preview, monkeypatch):
    monkeypatch.setattr(jobs, "BEAT_S", 0.0)

    def act(beat, take):
        take(FirstAnswer({"changed": 1}))
        policy_job.cancel(preview, OTTO)
        beat()
        raise AssertionError("it goes on")

    answer(monkeypatch, act)
    found = run(preview)
    of_later_versions = dict.fromkeys(LATER_FIELDS)
    assert (found["status"], found["result"]) == (CANCELLED, None)
    assert found["first_result"] == {"changed": 1, **of_later_versions}


def test_a_second_message_for_the_same_preview_does_nothing(preview, monkeypatch):
    answer(monkeypatch, lambda *_: NOTHING)
    run(preview)
    answer(monkeypatch, fail_with(AssertionError("again")))
    assert run(preview)["status"] == DONE


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (subprocess.SubprocessFailed("its process ended with status -9"), "its process ended with status -9"),
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh"),
    ],
)
def test_any_failure_ends_a_preview_with_the_cause(preview, monkeypatch, error, cause):
    answer(monkeypatch, fail_with(error))
    found = run(preview)
    assert (found["status"], found["cause"]) == (FAILED, cause)


def test_a_preview_of_engines_without_a_model_fails_and_says_what_to_do(preview, pool):
    pool.kind = "vllm"
    pool.save()
    found = run(preview)
    assert found["status"] == FAILED
    assert found["trust"] == [{"code": "not_modelled", "text": found["cause"]}]


def test_a_preview_of_a_pool_that_was_removed_in_the_meantime_ends_with_the_cause(preview, pool):
    pool.removed = True
    pool.save()
    found = run(preview)
    assert (found["status"], found["cause"]) == (FAILED, "pool demo is no longer there")


def test_a_preview_of_traffic_that_was_removed_in_the_meantime_ends_with_the_cause(policy, draft, record, live_redis):
    record(200)
    made = services.start(policy, OTTO)
    live_redis.flushall()
    found = run(made)
    assert found["status"] == FAILED
    assert "have recorded no request of pool demo" in found["cause"]


def later(seconds):
    return timezone.now() + timedelta(seconds=seconds)


def test_a_preview_whose_worker_died_runs_again_once(preview, sent):
    jobs.claim(Preview, preview.pk)
    expire.step(later(jobs.LOST_S - 1))
    preview.refresh_from_db()
    assert preview.status == RUNNING
    del sent[:]
    expire.step(later(jobs.LOST_S + 1))
    preview.refresh_from_db()
    assert (preview.status, sent) == (QUEUED, [("previews.run", [preview.pk], "control")])
    assert display.shown(as_dict(preview), display.PreviewStatus(True, "")).line == "waiting for a worker"
    jobs.claim(Preview, preview.pk)
    expire.step(later(jobs.LOST_S + 1))
    preview.refresh_from_db()
    assert preview.status == FAILED
    assert "worker lost" in preview.cause


def test_a_preview_that_runs_again_has_a_whole_result(preview, in_this_process):
    jobs.claim(Preview, preview.pk)
    expire.step(later(jobs.LOST_S + 1))
    found = run(preview)
    assert (found["status"], found["cause"], found["done"]) == (DONE, "", found["total"])
    assert found["result"]["classes"]["all"]["n"] == 40


def test_a_preview_whose_message_got_lost_is_sent_again(preview, sent):
    del sent[:]
    expire.step()
    assert sent == []
    preview.sent_at = later(-jobs.SENT_AGAIN_S - 1)
    preview.save()
    expire.step()
    assert sent == [("previews.run", [preview.pk], "control")]
    preview.refresh_from_db()
    assert preview.status == QUEUED


def test_results_that_arrive_after_the_job_was_given_up_are_not_written(preview):
    held = jobs.claim(Preview, preview.pk)
    expire.step(later(jobs.LOST_S + 1))
    assert not jobs.end(held, DONE)
    with pytest.raises(jobs.Stopped):
        jobs.Heartbeat(held).beat(done=1)
