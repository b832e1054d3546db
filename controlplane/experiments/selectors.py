"""Reading experiments: rows, and what a list or a page says about them."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from controlplane.experiments.models import Experiment, Run
from fleet.jobs import ENDED, RUNNING

OVERHEAD_S = 12.0  # starting a run's pool and taking it away


def experiments() -> QuerySet[Experiment]:
    """Newest first, with their runs."""
    return Experiment.objects.prefetch_related(Prefetch("runs", Run.objects.order_by("ordinal")))


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """How far an experiment is."""

    runs_done: int
    runs: int
    requests_done: int
    requests: int  # of all runs; 0 until the first has read its trace
    eta_s: float | None  # None when it has ended or nothing is known yet
    took_s: float | None  # since it began, None while queued


def progress_of(experiment: Experiment, now: datetime | None = None) -> ExperimentProgress:
    now = now or timezone.now()
    runs = list(experiment.runs.all())
    known = max((run.total for run in runs), default=0)
    began = experiment.started_at
    return ExperimentProgress(
        runs_done=sum(run.status in ENDED for run in runs),
        runs=len(runs),
        requests_done=sum(run.done for run in runs),
        requests=sum(run.total or known for run in runs),
        eta_s=None if experiment.status in ENDED else _eta(experiment, runs, now),
        took_s=((experiment.ended_at or now) - began).total_seconds() if began else None,
    )


def _eta(experiment: Experiment, runs: list[Run], now: datetime) -> float | None:
    return _twin_eta(experiment, runs, now) if experiment.mode == "twin" else _replay_eta(experiment, runs, now)


def _twin_eta(experiment: Experiment, runs: list[Run], now: datetime) -> float | None:
    """At the pace so far: each run has about as many requests as any other."""
    each = max((run.total for run in runs), default=0)
    played = sum(each if run.status in ENDED else run.done for run in runs)
    if not played or not experiment.started_at:
        return None
    took = (now - experiment.started_at).total_seconds()
    return max(1.0, took * (each * len(runs) - played) / played)


def _replay_eta(experiment: Experiment, runs: list[Run], now: datetime) -> float:
    """What the load takes by itself, and some seconds for each pool; a slow fleet takes longer."""
    each = experiment.duration_s / experiment.time_scale / experiment.load_factor + OVERHEAD_S
    left = sum(each for run in runs if run.status not in ENDED)
    for run in runs:
        if run.status == RUNNING and run.started_at:
            left -= min((now - run.started_at) / timedelta(seconds=1), each - 1)
    return max(1.0, left)
