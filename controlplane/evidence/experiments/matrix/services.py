"""Starts, resumes and cancels matrices. Their cells are experiments, which workers take from the queue."""

from contextlib import AbstractContextManager

from django.db import transaction
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.evidence.experiments import services
from controlplane.evidence.experiments.matrix.body import RUNS_MAX, MatrixIn
from controlplane.evidence.experiments.models import Experiment, Matrix, Run
from controlplane.people.audit.services import Actor, record
from fleet import jobs
from fleet.jobs import CANCELLED, DONE, FAILED, QUEUED
from router.contract.values.problem import InvalidInput, Problem

AGAIN = (FAILED, CANCELLED)


def start_matrix(asked: MatrixIn, actor: Actor) -> Matrix:
    """Check, store and queue every cell. InvalidInput lists every problem once."""
    if problem := asked.too_many:
        raise InvalidInput(problems=[problem])
    cells = _settled(asked, actor)
    with transaction.atomic():
        body = asked.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        matrix = Matrix.objects.create(name=asked.name, question=asked.question, body=body, actor=actor.name)
        for cell in cells:
            cell.matrix = matrix
            services.store(cell)
        record(actor, "matrix.start", f"matrix {matrix.pk}", after=body)
    for cell in cells:
        jobs.send(cell)
    return matrix


def _settled(asked: MatrixIn, actor: Actor) -> list[Experiment]:
    cells, problems = [], dict[tuple[str, str], Problem]()
    kept: dict[str, str] = {}  # recorded traffic keeps growing, so every load replays the copy made for the first load
    for index, cell in asked.cells():
        try:
            given = cell.model_copy(update={"trace": kept.get(cell.trace, cell.trace)})
            cells.append(services.settled(given, actor, RUNS_MAX))
            kept[cell.trace] = cells[-1].trace
        except InvalidInput as error:
            for problem in error.problems:
                path = f"traces.{index}" if problem.path == "trace" else problem.path
                problems.setdefault(
                    (path, problem.text), Problem(path, problem.value, problem.message, problem.allowed)
                )
    if problems:
        raise InvalidInput(problems=problems.values())
    return cells


def cancel_matrix(matrix: Matrix, actor: Actor, *, if_match: str | None = None) -> int:
    """Cancel the matrix. Return the number of cells that were stopped. Raise ChangedMeanwhile."""
    with _held(matrix, if_match) as matrix:
        found = [cell for cell in matrix.cells.all() if jobs.cancel(cell, actor.name, cancelled_by=actor.name)]
        for cell in found:
            services.cancel_queued_runs(cell, cell.cause)
        if found:
            record(actor, "matrix.cancel", f"matrix {matrix.pk}")
    return len(found)


def _held(matrix: Matrix, if_match: str | None) -> AbstractContextManager[Matrix]:
    return held(Matrix.objects.filter(pk=matrix.pk), f"matrix {matrix.pk}", if_match)


def resume_matrix(matrix: Matrix, actor: Actor, *, if_match: str | None = None) -> int:
    """Queue failed and cancelled cells again, keeping their finished runs. Return their number. Raise
    ChangedMeanwhile."""
    now = timezone.now()
    with _held(matrix, if_match) as matrix:
        cells = list(matrix.cells.filter(status__in=AGAIN))
        Run.objects.filter(experiment__in=cells).exclude(status=DONE).update(
            status=QUEUED, cause="", log="", step="", done=0, started_at=None, ended_at=None, heartbeat_at=None
        )
        Experiment.objects.filter(pk__in=[cell.pk for cell in cells]).update(
            status=QUEUED, cause="", cancelled_by="", sent_at=now, started_at=None, ended_at=None, heartbeat_at=None
        )
        if cells:
            record(actor, "matrix.resume", f"matrix {matrix.pk}")
    for cell in cells:
        jobs.send(cell)
    return len(cells)
