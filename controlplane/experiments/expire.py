"""What nobody else would notice: runs whose worker died, experiments whose message got lost, pools left behind."""

import contextlib
from datetime import datetime, timedelta

import redis
from django.db import DatabaseError
from django.db.models import Max
from django.utils import timezone

from controlplane.experiments import running, services
from controlplane.experiments.heartbeat import LOST_S
from controlplane.experiments.models import FAILED, QUEUED, RUNNING, Experiment, Run
from controlplane.experiments.modes import ephemeral_pool
from fleet.models import Pool

SENT_AGAIN_S = 30.0


def step(now: datetime | None = None) -> None:
    """One look at everything."""
    now = now or timezone.now()
    fail_lost_runs(now)
    fail_lost_experiments(now)
    send_again(now)
    remove_abandoned_pools()


def fail_lost_runs(now: datetime) -> None:
    """A run without a heartbeat ends failed, with the figures of the requests that finished."""
    lost = Run.objects.filter(status=RUNNING, heartbeat_at__lt=now - timedelta(seconds=LOST_S))
    for run in lost.select_related("experiment"):
        cause = f"worker lost: no heartbeat for {(now - (run.heartbeat_at or now)).total_seconds():.0f} s"
        if running.end(run, FAILED, f"{cause}, while {run.step or 'starting'}"):
            running.close(run.experiment_id, FAILED, f"{run}: {cause}")


def fail_lost_experiments(now: datetime) -> None:
    """Its worker died between two runs: it says that it runs, but no run does or did for LOST_S."""
    for experiment in Experiment.objects.filter(status=RUNNING, started_at__lt=now - timedelta(seconds=LOST_S)):
        if experiment.runs.filter(status=RUNNING).exists():
            continue
        last = experiment.runs.aggregate(last=Max("ended_at"))["last"]
        if last is None or last < now - timedelta(seconds=LOST_S):
            running.close(experiment.pk, FAILED, "worker lost between two runs")


def send_again(now: datetime) -> None:
    """Queued for long while nothing runs: its message is lost (Redis came back empty). A duplicate does nothing."""
    if Experiment.objects.filter(status=RUNNING).exists():
        return
    first = Experiment.objects.filter(status=QUEUED).order_by("pk").first()
    if first is None:
        return
    due = Experiment.objects.filter(pk=first.pk, sent_at__lt=now - timedelta(seconds=SENT_AGAIN_S))
    if due.update(sent_at=now):
        services.send(first)


def remove_abandoned_pools() -> None:
    """Pools of runs that have ended: whoever made them died before taking them away."""
    for pool in Pool.objects.exclude(ephemeral_owner="").filter(removed=False):
        if ephemeral_pool.pool_is_abandoned(pool):
            with contextlib.suppress(redis.RedisError, DatabaseError):
                ephemeral_pool.tear_down(pool.name)
