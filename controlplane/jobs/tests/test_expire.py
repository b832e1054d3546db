"""Every kind of job is failed when its worker died, and sent again when its message got lost."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.experiments.models import Experiment, Run
from controlplane.experiments.tests.conftest import arm_of
from controlplane.jobs import expire
from controlplane.policies.services import ensure_default_policy
from controlplane.previews.models import Preview
from fleet import jobs
from fleet.jobs import FAILED, QUEUED, RUNNING, Job
from fleet.models import Calibration

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_dir")]


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(
        "controlplane.celery.app.send_task", lambda name, args, queue: found.append((name, args, queue))
    )
    return found


def experiment(**values: Any) -> Job:
    about = {"pacing": "timestamps", "load_factor": 1, "duration_s": 60, "time_scale": 1, "seeds": [1]}
    made = Experiment.objects.create(
        name="A vs B", trace="t", pool="demo", actor="ada", arms=[arm_of("round_robin")], **about, **values
    )
    Run.objects.create(experiment=made, arm="round_robin", seed=1, ordinal=0, status=made.status)
    return made


def preview(**values: Any) -> Job:
    about = {"live_version": 1, "draft_revision": 1, "draft_document": {}, "max_requests": 10, "seeds": [1]}
    return Preview.objects.create(policy=ensure_default_policy(), pool="demo", actor="ada", **about, **values)


def calibration(**values: Any) -> Job:
    about = {"pool": "chat", "kind": "vllm", "model": "m", "config_hash": "c", "node": "gpu-1"}
    return Calibration.objects.create(instance="chat-0", actor="ada", seconds=30, **about, **values)


KINDS = pytest.mark.parametrize(
    ("make", "message"),
    [
        (experiment, ("experiments.run", "experiments")),
        (preview, ("previews.run", "control")),
        (calibration, ("fleet.calibrate", "node.gpu-1")),
    ],
)


def ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


@KINDS
def test_a_job_whose_worker_died_is_failed(make: Any, message: Any) -> None:
    job = make(status=RUNNING, heartbeat_at=ago(jobs.LOST_S + 1))
    expire.step()
    job.refresh_from_db()
    assert job.status == FAILED
    assert "worker lost: no heartbeat for 16 s" in job.cause
    assert job.ended_at is not None


@KINDS
def test_a_job_with_a_heartbeat_goes_on(make: Any, message: Any) -> None:
    job = make(status=RUNNING, heartbeat_at=ago(jobs.LOST_S - 2))
    expire.step()
    job.refresh_from_db()
    assert job.status == RUNNING


@KINDS
def test_a_queued_job_whose_message_got_lost_is_sent_again_once(make: Any, message: Any, sent: list[Any]) -> None:
    job = make(status=QUEUED, sent_at=ago(jobs.SENT_AGAIN_S + 1))
    expire.step()
    expire.step()
    assert sent == [(message[0], [job.pk], message[1])]


@KINDS
def test_a_job_is_claimed_once_and_ended_once(make: Any, message: Any) -> None:
    job = make()
    assert jobs.claim(type(job), job.pk) == job
    assert jobs.claim(type(job), job.pk) is None
    assert jobs.end(job, jobs.DONE)
    assert not jobs.end(job, FAILED, "too late")
    assert not jobs.cancel(job, "ada")
    assert job.status == jobs.DONE


@KINDS
def test_a_lost_worker_stops_even_when_the_job_was_resumed_and_runs_elsewhere(make: Any, message: Any) -> None:
    job = make()
    lost = jobs.Heartbeat(jobs.claim(type(job), job.pk))
    jobs.end(job, FAILED, "worker lost")
    assert jobs.resume(job)
    assert not jobs.resume(job)
    elsewhere = jobs.Heartbeat(jobs.claim(type(job), job.pk))
    with pytest.raises(jobs.Stopped):
        lost.beat()
    elsewhere.beat()


@KINDS
def test_a_cancelled_job_stops_at_the_next_heartbeat(make: Any, message: Any) -> None:
    job = make(status=RUNNING)
    heartbeat = jobs.Heartbeat(job)
    assert jobs.cancel(job, "ada")
    assert (job.status, job.cause) == ("cancelled", "cancelled by ada")
    with pytest.raises(jobs.Stopped):
        heartbeat.beat()
