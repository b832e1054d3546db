"""Reads experiments and their progress."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from django.db.models import Count, Prefetch, Q, QuerySet
from django.utils import timezone

from controlplane.common.as_seen import found
from controlplane.common.description import Description
from controlplane.evidence.experiments.models import Experiment, Matrix, Run
from controlplane.evidence.experiments.modes import MODES
from fleet.jobs import DONE, ENDED, QUEUED, RUNNING, owner_of

LARGE = ("record", "summary")  # large fields that lists do not read


def matrices(*, with_values: bool = False) -> QuerySet[Matrix]:
    """Return matrices, newest first, with their cells in order and their runs counted. `with_values` adds the values
    for the heat table."""
    counted = {"runs_total": Count("runs"), "runs_done": Count("runs", filter=Q(runs__status=DONE))}
    cells = Experiment.objects.order_by("pk").annotate(**counted).defer(*(LARGE[:1] if with_values else LARGE))
    return Matrix.objects.prefetch_related(Prefetch("cells", cells))


def experiments() -> QuerySet[Experiment]:
    """Return experiments, newest first, with their runs."""
    return Experiment.objects.defer(*LARGE).prefetch_related(Prefetch("runs", Run.objects.order_by("ordinal")))


def matrix(number: int) -> Matrix:
    """Return a matrix with the values of its cells. Raise Http404."""
    return found(matrices(with_values=True).filter(pk=number).first(), f"there is no matrix {number}")


def experiment(number: int) -> Experiment:
    """Return an experiment with its runs. Raise Http404."""
    return found(experiments().filter(pk=number).first(), f"there is no experiment {number}")


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    runs_done: int
    runs: int
    requests_done: int
    requests: int  # requests of all runs; 0 until the first run has read its trace
    eta_s: float | None  # None once it has ended, or while nothing is known
    took_s: float | None  # time since it began; None before
    queued_behind: Annotated[
        int | None, Description("Experiments that run or may have their turn earlier; null unless it is queued")
    ]


def progress_of(experiment: Experiment, now: datetime | None = None) -> ExperimentProgress:
    now = now or timezone.now()
    runs = list(experiment.runs.all())
    known = max((run.total for run in runs), default=0)
    began = min((run.started_at for run in runs if run.started_at), default=experiment.started_at)
    return ExperimentProgress(
        runs_done=sum(run.status == DONE for run in runs),
        runs=len(runs),
        requests_done=sum(run.done for run in runs),
        requests=sum(run.total or known for run in runs),
        eta_s=None if experiment.status in ENDED else MODES[experiment.mode].eta_s(experiment, runs, now),
        took_s=((experiment.ended_at or now) - began).total_seconds() if began else None,
        queued_behind=_queued_behind(experiment) if experiment.status == QUEUED else None,
    )


def _queued_behind(experiment: Experiment) -> int:
    active, mine = Experiment.objects.order_by(), owner_of(experiment.actor)
    waiting = [(pk, owner_of(actor)) for pk, actor in active.filter(status=QUEUED).values_list("pk", "actor")]
    place = sum(pk < experiment.pk and owner == mine for pk, owner in waiting)
    queued = Counter(owner for _, owner in waiting if owner != mine)
    others = sum(min(count, place + 1) for count in queued.values())
    running: int = active.filter(status=RUNNING).count()
    return running + place + others
