"""Starting, performing and cancelling a tuning; a winner as draft."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.doors.api.routes.evidence.tunings import with_trials
from controlplane.doors.jobs import expire
from controlplane.evidence.previews import policy_job
from controlplane.evidence.tuning import running, services
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.search import EVENLY
from controlplane.evidence.tuning.services import RangeIn
from controlplane.evidence.tuning.tests.conftest import OTTO, started
from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Draft, Policy
from controlplane.traffic.policies.tests.conftest import ADA, edit
from fleet import jobs, subprocess
from fleet.models import Pool
from router.contract.values.problem import InvalidInput

pytestmark = pytest.mark.usefixtures("sent")


def test_a_tuning_is_queued_and_audited(policy, sent):
    made = started(policy)
    assert sent == [("tuning.run", [made.pk], "control")]
    entry = AuditEntry.objects.get(action="tuning.start")
    assert (entry.subject, entry.after["seed"]) == (f"tuning {made.pk} of default", 1)
    assert (made.status, made.total, made.live_version, made.pool) == ("queued", 3, 1, "demo")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"pool": "other"}, "pool"),
        ({"trace": "no-such"}, "trace"),
        ({"held_out": 0.1}, "held_out"),  # 10 of 100
        ({"parameters": [RangeIn(path="strategy.name")]}, "parameters.0.path"),
    ],
)
def test_invalid_input_is_refused_with_its_path(policy, changes, path):
    with pytest.raises(InvalidInput) as raised:
        started(policy, **changes)
    assert [problem.path for problem in raised.value.problems] == [path]
    assert not Tuning.objects.exists()


def test_a_trace_of_few_requests_is_refused(policy, monkeypatch):
    monkeypatch.setattr(services, "LEAST_REQUESTS", 101)
    with pytest.raises(InvalidInput, match="has 100 requests to play: a tuning needs at least 101"):
        started(policy)


def test_the_held_out_share_objectives_and_time_limit_are_stored(policy, here):
    made = started(policy, held_out=0.5, objectives=["goodput", "ttft"], time_limit_s=600)
    running.run_tuning(made.pk)
    found = with_trials(Tuning.objects.get())
    assert (found["trials"][0]["n"], found["result"]["winners"][0]["check"]["n"]) == (50, 50)
    assert (found["objectives"], found["time_limit_s"], found["held_out"]) == (["ttft", "goodput"], 600, 0.5)
    assert AuditEntry.objects.get(action="tuning.start").after["held_out"] == 0.5


def test_a_pool_that_the_twin_cannot_model_is_refused(policy):
    Pool.objects.update(replicas=0)
    with pytest.raises(InvalidInput, match="no instance that should run"):
        started(policy)


def test_a_tuning_ends_with_trials_winners_and_what_was_not_tested(done):
    found = with_trials(done)
    assert (found["done"], [each["number"] for each in found["trials"]]) == (3, [1, 2, 3])
    assert (found["trials"][0]["n"], found["result"]["winners"][0]["check"]["n"]) == (70, 30)
    text = "\n".join(found["result"]["not_tested"])
    assert "real engines" in text
    assert EVENLY in text
    assert "agentic-demo is not traffic of pool demo" in text
    assert "30 requests were compared, fewer than 200" in text


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (subprocess.SubprocessFailed("MemoryError: out of memory"), "MemoryError: out of memory"),
        (ZeroDivisionError("x"), "ZeroDivisionError: x"),
    ],
)
def test_every_failure_has_a_cause(policy, monkeypatch, error, cause):
    def act(*_):
        raise error

    made = started(policy)
    monkeypatch.setattr(subprocess, "run_in_subprocess", act)
    running.run_tuning(made.pk)
    made.refresh_from_db()
    assert (made.status, made.cause) == ("failed", cause)


def test_a_pool_that_was_removed_in_the_meantime_ends_the_tuning(policy, here):
    made = started(policy)
    Pool.objects.update(removed=True)
    running.run_tuning(made.pk)
    made.refresh_from_db()
    assert (made.status, made.cause) == ("failed", "pool demo is no longer there")


def test_a_cancelled_tuning_stops_at_the_next_trial_and_keeps_the_earlier_ones(policy, here, monkeypatch):
    made = started(policy)
    keep = running._keep

    def cancelling(tuning, heartbeat, tried):
        keep(tuning, heartbeat, tried)
        assert policy_job.cancel(made, OTTO)

    monkeypatch.setattr(running, "_keep", cancelling)
    running.run_tuning(made.pk)
    made.refresh_from_db()
    assert (made.status, made.cause, made.trials.count()) == ("cancelled", "cancelled by otto", 1)
    assert not policy_job.cancel(made, OTTO)
    running.run_tuning(made.pk)  # a second message changes nothing
    assert made.trials.count() == 1


@pytest.fixture
def interrupted(policy, here):
    """A tuning whose worker was lost after the second trial, before storing it."""
    made = started(policy)
    running.run_tuning(made.pk)
    made.trials.filter(number__gt=1).delete()
    Tuning.objects.update(status="failed", cause="worker lost", done=2, result=None)
    made.refresh_from_db()
    return made


def test_a_resumed_tuning_continues_after_its_finished_trials(interrupted, sent, monkeypatch):
    monkeypatch.setattr(
        running, "_keep", lambda *given, keep=running._keep: kept.append(given[2].number) or keep(*given)
    )
    kept = []
    assert services.resume(interrupted, OTTO)
    assert not services.resume(interrupted, OTTO)
    assert (interrupted.status, interrupted.cause, interrupted.done) == ("queued", "", 2)
    assert AuditEntry.objects.filter(action="tuning.resume").count() == 1
    assert sent[-1] == ("tuning.run", [interrupted.pk], "control")
    running.run_tuning(interrupted.pk)
    interrupted.refresh_from_db()
    assert (interrupted.status, interrupted.done, interrupted.trials.count(), kept) == ("done", 3, 3, [2, 3])
    assert interrupted.result["winners"]


def test_a_tuning_is_not_resumed_on_a_changed_fleet(interrupted):
    Pool.objects.update(replicas=3)
    services.resume(interrupted, OTTO)
    running.run_tuning(interrupted.pk)
    interrupted.refresh_from_db()
    assert interrupted.status == "failed"
    assert "has changed since the first trials: start another tuning" in interrupted.cause
    assert interrupted.trials.count() == 1


def test_a_tuning_whose_worker_died_continues_once_and_says_why(interrupted, otto_client):
    def lose_worker():
        assert jobs.claim(Tuning, interrupted.pk)
        expire.step(timezone.now() + timedelta(seconds=jobs.LOST_S + 1))

    Tuning.objects.update(status="queued", cause="")
    lose_worker()
    interrupted.refresh_from_db()
    assert (interrupted.status, interrupted.cause[:11]) == ("queued", "worker lost")
    page = f"/policies/default/tunings/{interrupted.pk}/"
    assert "Restarted: worker lost" in otto_client.get(page).content.decode()
    running.run_tuning(interrupted.pk)
    interrupted.refresh_from_db()
    assert (interrupted.status, interrupted.cause, interrupted.trials.count()) == ("done", "", 3)
    Tuning.objects.update(status="queued", cause="worker lost")
    lose_worker()
    interrupted.refresh_from_db()
    assert (interrupted.status, interrupted.cause[:11]) == ("failed", "worker lost")


def test_old_tunings_are_deleted(policy, monkeypatch):
    monkeypatch.setattr(services, "KEPT", 1)
    first = started(policy)
    Tuning.objects.update(status="done")
    started(policy)
    assert not Tuning.objects.filter(pk=first.pk).exists()


def test_a_winner_becomes_a_draft_with_its_evidence_and_is_not_published(done):
    winner = done.result["winners"][0]
    draft = services.draft_of(done, winner["trial"], OTTO)
    assert draft.document["classes"]["heavy_new_tokens"] == winner["values"]["classes.heavy_new_tokens"]
    stored = Draft.objects.get()
    for text in (f"/policies/default/tunings/{done.pk}/", "95 % interval", "Not tested:", "the search never saw"):
        assert text in stored.note
    done.refresh_from_db()
    assert (done.drafted, Policy.objects.get().live) == (winner["trial"], 1)
    assert AuditEntry.objects.get(action="tuning.draft").reason == f"trial {winner['trial']}"


def test_a_winner_does_not_replace_an_open_draft_and_names_its_owner(done):
    edit(done.policy, heavy_new_tokens=9_000)
    before = Draft.objects.get()
    with pytest.raises(Conflict, match="has a draft of default open") as raised:
        services.draft_of(done, done.result["winners"][0]["trial"], ADA)
    assert before.updated_by in str(raised.value)
    assert Draft.objects.get().document == before.document


def test_a_draft_that_another_person_opens_at_the_same_moment_is_kept(done, monkeypatch):
    monkeypatch.setattr(services, "_check_no_draft", lambda policy: None)  # opened just after the check
    policy_services.open_draft(done.policy, ADA)
    with pytest.raises(Conflict, match="ada has a draft"):
        services.draft_of(done, done.result["winners"][0]["trial"], OTTO)
    assert Draft.objects.get().revision == 1


def test_only_a_winner_of_a_finished_tuning_becomes_a_draft(done):
    with pytest.raises(InvalidInput) as raised:
        services.draft_of(done, 77, OTTO)
    assert raised.value.problems[0].value == 77
    type(done).objects.update(status="running")
    with pytest.raises(InvalidInput, match="the tuning is running"):
        services.draft_of(done, 1, OTTO)


def test_after_a_newer_version_went_live_a_new_tuning_is_needed(done):
    edit(done.policy, heavy_new_tokens=9_000)
    policy_services.publish(done.policy, ADA, "less prefill on warm instances")
    with pytest.raises(Conflict, match="v2 by ada is live now: tune again"):
        services.draft_of(done, done.result["winners"][0]["trial"], OTTO)
