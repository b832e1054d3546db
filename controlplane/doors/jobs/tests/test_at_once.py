"""Two workers that claim jobs at the same moment start no more of them than may run beside each other."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection

from controlplane.doors.jobs.tests.test_expire import calibration, experiment, preview
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.previews.models import Preview
from fleet import jobs
from fleet.jobs import Job
from fleet.models import Calibration


def previews() -> list[Job]:
    """Two of them, and room for one."""
    assert jobs.claim(Preview, preview().pk)
    return [preview(), preview()]


def replay_beside_twin() -> list[Job]:
    return [experiment(mode="twin"), experiment(mode="replay")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("make", "model"), [(previews, Preview), (replay_beside_twin, Experiment)])
def test_one_of_two_jobs_starts(make: Any, model: Any, redis_away: None, monkeypatch: pytest.MonkeyPatch) -> None:
    both = make()
    allowed, looked = model.may_start, threading.Barrier(2)

    def both_look(job_id: int) -> bool:
        """Until the other claim has found that it may start, too, or has waited for this one to end."""
        found: bool = allowed(job_id)
        with contextlib.suppress(threading.BrokenBarrierError):
            looked.wait(timeout=1)
        return found

    monkeypatch.setattr(model, "may_start", both_look)
    threads = [threading.Thread(target=_claim, args=(job,)) for job in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert model.objects.filter(pk__in=[job.pk for job in both], status=jobs.RUNNING).count() == 1


def _claim(job: Job) -> None:
    """In this thread's own connection; on SQLite it may find the database locked, and the message comes again."""
    while True:
        with contextlib.suppress(OperationalError), contextlib.closing(connection):
            jobs.claim(type(job), job.pk)
            return


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    numbers: list[int] = []
    monkeypatch.setattr(jobs, "send", lambda job: numbers.append(job.pk))
    return numbers


@pytest.mark.django_db
def test_whoever_asked_for_one_job_does_not_wait_for_all_of_another(sent: list[int], data_dir: Path) -> None:
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
def test_jobs_of_a_node_that_is_away_hold_up_none_of_another_node(sent: list[int], data_dir: Path) -> None:
    away = [calibration(instance=f"chat-{i}", node="gpu-away").pk for i in range(Calibration.AT_ONCE + 1)]
    there = calibration(instance="code-0", node="gpu-2").pk
    jobs.send_next(Calibration)
    assert sent == [*away[:-1], there]
