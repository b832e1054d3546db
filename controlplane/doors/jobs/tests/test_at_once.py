"""Starting jobs: how many may run at the same time, and whose turn it is."""

import contextlib
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from controlplane.doors.jobs.tests.test_expire import calibration, experiment, preview
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.previews.models import Preview
from fleet import jobs
from fleet.jobs import Job
from fleet.models import Calibration


def previews() -> list[Job]:
    """Two previews, only one of which may run."""
    assert jobs.claim(Preview, preview().pk)
    return [preview(), preview()]


def replay_beside_twin() -> list[Job]:
    return [experiment(mode="twin"), experiment(mode="replay")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("make", "model"), [(previews, Preview), (replay_beside_twin, Experiment)])
def test_only_one_of_two_jobs_starts(make: Any, model: Any, redis_away: None, monkeypatch: pytest.MonkeyPatch) -> None:
    both = make()
    startable, looked = model.startable, threading.Barrier(2)

    def both_look(in_turn: list[Job], running: Any) -> list[Job]:
        """Wait until the other claim has read which jobs may start, or is waiting for this one to end."""
        found: list[Job] = startable(in_turn, running)
        with contextlib.suppress(threading.BrokenBarrierError):
            looked.wait(timeout=1)
        return found

    monkeypatch.setattr(model, "startable", both_look)
    threads = [threading.Thread(target=_claim, args=(job,)) for job in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert model.objects.filter(pk__in=[job.pk for job in both], status=jobs.RUNNING).count() == 1


def _claim(job: Job) -> None:
    """Claim through this thread's own connection; retry on a locked SQLite, as a redelivered message would."""
    while True:
        with contextlib.suppress(OperationalError), contextlib.closing(connection):
            jobs.claim_next(type(job), job.pk)
            return


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    numbers: list[int] = []
    monkeypatch.setattr(jobs, "send", lambda job: numbers.append(job.pk))
    return numbers


@pytest.mark.django_db
def test_the_owner_of_one_job_does_not_wait_for_all_jobs_of_another(sent: list[int], data_dir: Path) -> None:
    many = [preview(actor="anna").pk for _ in range(5)]
    single = preview(actor="otto").pk
    jobs.send_next(Preview)
    assert sent == [many[0], single]
    jobs.claim(Preview, many[0])
    del sent[:]
    jobs.send_next(Preview)
    assert sent == [single]
    jobs.claim(Preview, single)
    del sent[:]
    jobs.send_next(Preview)
    assert sent == []


@pytest.mark.django_db
def test_jobs_of_an_unreachable_node_do_not_delay_jobs_of_another_node(sent: list[int], data_dir: Path) -> None:
    away = [calibration(instance=f"chat-{i}", node="gpu-away").pk for i in range(Calibration.AT_ONCE + 1)]
    there = calibration(instance="code-0", node="gpu-2").pk
    jobs.send_next(Calibration)
    assert sent == [*away[:-1], there]


@pytest.mark.django_db
def test_owners_take_turns_even_if_only_one_job_runs_at_a_time(
    sent: list[int], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages arrive in the order of requests. A token's jobs are its owner's."""
    monkeypatch.setattr(Preview, "AT_ONCE", 1)
    annas = ("anna", "ci (anna)", "night (2) (anna)", "anna")
    messages = [preview(actor=actor).pk for actor in (*annas, "otto", "vera", "ci (otto)")]
    served = []
    for message in messages:
        job = jobs.claim_next(Preview, message)
        assert job is not None
        served.append(job.actor)
        jobs.end(job, jobs.DONE)
    assert served == ["anna", "otto", "vera", "ci (anna)", "ci (otto)", "night (2) (anna)", "anna"]


@pytest.mark.django_db
def test_an_experiment_with_many_runs_yields_to_other_jobs_between_two_runs(sent: list[int], data_dir: Path) -> None:
    job = experiment(actor="anna", mode="twin")
    mine = jobs.claim_next(Experiment, job.pk)
    assert mine is not None
    other = experiment(actor="otto", mode="twin")
    assert not jobs.give_way(mine)  # its turn has just begun
    mine.started_at = timezone.now() - timedelta(seconds=jobs.TURN_S)
    Experiment.objects.filter(pk=mine.pk).update(started_at=mine.started_at)
    Experiment.objects.filter(pk=other.pk).update(actor="ci (anna)")
    assert not jobs.give_way(mine)  # a user's own job need not give way
    Experiment.objects.filter(pk=other.pk).update(actor="otto")
    assert jobs.give_way(mine)
    assert sent == [other.pk, mine.pk]
    assert jobs.claim_next(Experiment, mine.pk) == other
    with pytest.raises(jobs.Stopped):
        jobs.Heartbeat(mine).beat()
    again = jobs.claim_next(Experiment, other.pk)
    assert again == mine


@pytest.mark.django_db
def test_a_replay_whose_turn_it_is_does_not_wait_for_older_simulations(sent: list[int], data_dir: Path) -> None:
    first, second, *_ = [experiment(actor="anna", mode="twin") for _ in range(5)]
    assert jobs.claim_next(Experiment, first.pk) == first
    replay = experiment(actor="otto", mode="replay")
    assert jobs.claim_next(Experiment, second.pk) is None
    jobs.end(Experiment.objects.get(pk=first.pk), jobs.DONE)
    assert jobs.claim_next(Experiment, second.pk) == replay
    assert jobs.claim_next(Experiment, second.pk) is None
