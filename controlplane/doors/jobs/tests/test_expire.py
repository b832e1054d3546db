"""Jobs of every kind fail when their worker dies, and are sent again when their message is lost."""

import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.doors.jobs import expire
from controlplane.evidence.experiments import running as experiments
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.tests.conftest import arm_of
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.tuning.models import Tuning
from controlplane.traffic.policies.services import ensure_default_policy
from fleet import jobs
from fleet.jobs import FAILED, QUEUED, RUNNING, Job
from fleet.models import Calibration
from fleet.tries import RowsFailed

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
        name="A vs B", trace="t", pool="demo", arms=[arm_of("round_robin")], **{"actor": "ada"} | about | values
    )
    Run.objects.create(experiment=made, arm="round_robin", seed=1, ordinal=0, status=made.status)
    return made


def preview(**values: Any) -> Job:
    about = {"live_version": 1, "draft_revision": 1, "draft_document": {}, "max_requests": 10, "seeds": [1]}
    return Preview.objects.create(policy=ensure_default_policy(), pool="demo", **{"actor": "ada"} | about | values)


def calibration(**values: Any) -> Job:
    about = {"pool": "chat", "kind": "vllm", "model": "m", "config_hash": "c", "node": "gpu-1"}
    return Calibration.objects.create(**{"instance": "chat-0", "actor": "ada", "seconds": 30} | about | values)


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


def after_its_worker(make: Any) -> str:
    """Return the status of a job after its worker died. Simulations are run again, once."""
    return QUEUED if make is preview else FAILED


@KINDS
def test_a_job_whose_worker_died_fails_or_is_run_again_once(make: Any, message: Any) -> None:
    job = make(status=RUNNING, heartbeat_at=ago(jobs.LOST_S + 1))
    expire.step()
    job.refresh_from_db()
    assert (job.status, job.ended_at is not None) == (after_its_worker(make), make is not preview)
    assert "worker lost: no heartbeat for 61 s" in job.cause


def plan(**values: Any) -> Job:
    return FleetPlan.objects.create(**{"actor": "ada", "max_requests": 10, "asked": {}} | values)


def tuning(**values: Any) -> Job:
    about = {"live_version": 1, "pool": "demo", "max_requests": 10, "seed": 1, "workers": 1, "space": []}
    return Tuning.objects.create(policy=ensure_default_policy(), **{"actor": "ada"} | about | values)


@pytest.mark.parametrize(("make", "done"), [(preview, 0), (plan, 0), (tuning, 9)])
def test_only_a_job_that_stores_its_parts_keeps_its_progress_when_it_is_run_again(make: Any, done: int) -> None:
    job = make(status=RUNNING, heartbeat_at=ago(jobs.LOST_S + 1), done=9, total=10)
    expire.step()
    job.refresh_from_db()
    assert (job.status, job.done) == (QUEUED, done)


@KINDS
def test_a_job_with_a_heartbeat_continues(make: Any, message: Any) -> None:
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
    claimed = jobs.claim(type(job), job.pk)
    assert claimed == job
    assert jobs.claim(type(job), job.pk) is None
    assert jobs.end(claimed, jobs.DONE)
    assert not jobs.end(claimed, FAILED, "too late")
    assert not jobs.cancel(job, "ada")
    assert job.status == jobs.DONE


@KINDS
def test_a_lost_worker_stops_even_if_the_job_was_resumed_elsewhere(make: Any, message: Any) -> None:
    job = make()
    claimed = jobs.claim(type(job), job.pk)
    lost = jobs.Heartbeat(claimed)
    jobs.end(claimed, FAILED, "worker lost")
    assert jobs.resume(job)
    assert not jobs.resume(job)
    elsewhere = jobs.Heartbeat(jobs.claim(type(job), job.pk))
    with pytest.raises(jobs.Stopped):
        lost.beat()
    elsewhere.beat()


@KINDS
def test_a_lost_worker_that_comes_back_does_not_end_the_job_of_its_successor(make: Any, message: Any) -> None:
    job = make()
    lost = jobs.claim(type(job), job.pk)
    assert lost is not None
    jobs.end(lost, FAILED, "worker lost")
    jobs.resume(job)
    successor = jobs.claim(type(job), job.pk)
    assert not jobs.end(lost, jobs.DONE)
    assert not jobs.end(lost, FAILED, "too late")
    assert jobs.end(successor, jobs.DONE)


def ended_process() -> str:
    code = "import runpy; print(runpy.run_path('fleet/jobs/process_identity.py')['own']())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@KINDS
def test_a_job_whose_process_is_known_to_have_ended_is_lost_at_once(make: Any, message: Any) -> None:
    job = make(status=RUNNING, heartbeat_at=ago(0), worker=ended_process())
    expire.step()
    job.refresh_from_db()
    assert (job.status, "worker lost: its process ended" in job.cause) == (after_its_worker(make), True)


@KINDS
def test_a_job_that_cannot_be_ended_does_not_keep_others_from_ending(
    make: Any, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("controlplane.evidence.experiments.running.fail_lost", refuse)
    first, other = experiment(status=RUNNING, heartbeat_at=ago(90)), make(status=RUNNING, heartbeat_at=ago(90))
    with pytest.raises(RowsFailed, match=f"experiment {first.pk}: PermissionError"):
        expire.step()
    other.refresh_from_db()
    assert other.status == (RUNNING if make is experiment else after_its_worker(make))


@pytest.mark.django_db(transaction=True)
def test_a_job_sends_heartbeats_even_while_its_work_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ALIVE_S", 0.02)
    job = preview()
    with jobs.held(Preview, job.pk) as held:
        assert held is not None
        first, end = held.heartbeat_at, time.monotonic() + 30
        while Preview.objects.get().heartbeat_at == first:
            assert time.monotonic() < end
            time.sleep(0.02)
        jobs.end(held, jobs.DONE)


@pytest.mark.django_db(transaction=True)
def test_the_heartbeats_of_a_lost_worker_do_not_keep_its_successors_job_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ALIVE_S", 0.02)
    job = preview()
    with jobs.held(Preview, job.pk):
        heard = ago(30)
        Preview.objects.update(started_at=ago(40), heartbeat_at=heard)
        end = time.monotonic() + 30
        while any(thread.name == f"alive: {job.pk}" for thread in threading.enumerate()):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert Preview.objects.get().heartbeat_at == heard


def test_an_experiment_whose_runs_are_all_done_is_ended_by_at_most_one_other_worker(
    sent: list[Any],
) -> None:
    job = experiment(status=RUNNING, started_at=ago(100), heartbeat_at=ago(90))
    Run.objects.update(status=jobs.DONE)
    expire.step()
    job.refresh_from_db()
    assert (job.status, sent) == (QUEUED, [("experiments.run", [job.pk], "experiments")])
    assert jobs.claim(Experiment, job.pk) is not None
    Experiment.objects.update(heartbeat_at=ago(90))
    expire.step()
    job.refresh_from_db()
    assert job.status == FAILED


def test_an_experiment_whose_worker_died_after_its_last_run_ends_done(sent: list[Any]) -> None:
    job = experiment(status=RUNNING, started_at=ago(100), heartbeat_at=ago(90))
    Run.objects.update(status=jobs.DONE)
    expire.step()
    experiments.run_experiment(job.pk)
    job.refresh_from_db()
    assert (job.status, job.cause) == (jobs.DONE, "")


def test_a_lost_worker_leaves_the_runs_of_its_successor_alone() -> None:
    job = experiment()
    lost = jobs.claim(Experiment, job.pk)
    assert lost is not None
    Experiment.objects.update(started_at=ago(1))
    experiments.close(lost, FAILED, "its pool is gone")
    job.refresh_from_db()
    assert (job.status, Run.objects.get().status) == (RUNNING, RUNNING if job.status == FAILED else QUEUED)


@KINDS
def test_a_cancelled_job_stops_at_the_next_heartbeat(make: Any, message: Any) -> None:
    job = make(status=RUNNING)
    heartbeat = jobs.Heartbeat(job)
    assert jobs.cancel(job, "ada")
    assert (job.status, job.cause) == ("cancelled", "cancelled by ada")
    with pytest.raises(jobs.Stopped):
        heartbeat.beat()
