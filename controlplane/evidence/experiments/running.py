"""Runs an experiment as a job: its runs one after another, each with the results of its finished requests."""

from datetime import datetime
from typing import Any

import msgspec
import redis
import structlog
from celery import shared_task
from django.utils import timezone

from controlplane.evidence.experiments import provenance, services
from controlplane.evidence.experiments.matrix.summary import of_results
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.modes.run_inputs import RunFailed, of_this_start, was_performed
from controlplane.evidence.experiments.results import records, summarize
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.results.types import ExperimentResults
from controlplane.evidence.traces import library
from controlplane.evidence.traces.types import BadTrace
from fleet import jobs
from fleet.jobs import CANCELLED, DONE, ENDED, FAILED, QUEUED, RUNNING
from fleet.tries import Try

log = structlog.get_logger(__name__)
EXPECTED = (BadTrace, library.TraceError, OSError, redis.RedisError)


class RunHeartbeat(jobs.Heartbeat):
    """The heartbeat of the experiment, which also stores the progress of its run."""

    def __init__(self, experiment: Experiment, run: Run) -> None:
        super().__init__(experiment)
        self.run = run

    def write(self, at: datetime, progress: dict[str, Any]) -> None:
        super().write(at, {})
        self.run.step = progress.get("step", self.run.step)
        of_this_start(self.run).update(heartbeat_at=at, **progress)


@shared_task(name="experiments.run")
def run_experiment(experiment_id: int) -> None:
    """Perform the runs of the experiment that is next; between runs, another experiment may become the next. The worker
    of the queue `experiments` performs one at a time."""
    with jobs.held(Experiment, experiment_id) as experiment:
        if experiment is not None:
            _run(experiment)


def _run(experiment: Experiment) -> None:
    """Perform the runs. Unlike in jobs.perform, an error outside a run, such as an unreachable database, does not fail
    the experiment: the next worker continues after the runs that have ended."""
    for run in experiment.runs.all():
        status = execute(run, experiment)
        if status != DONE:
            close(experiment, status, f"{run}: {run.cause}" if status == FAILED else run.cause)
            return
        if jobs.give_way(experiment):
            return
    experiment.status = DONE
    try:
        results = results_of(experiment, jobs.Heartbeat(experiment).beat)
    except jobs.Stopped:
        ended = jobs.of_this_start(experiment).first()
        if ended is not None:
            close(experiment, ended.status, ended.cause)
    except Exception as error:
        close(experiment, FAILED, f"results: {jobs.cause_of(error, EXPECTED)}")
    else:
        close(experiment, DONE, results=results)


def close(experiment: Experiment, status: str, cause: str = "", results: ExperimentResults | None = None) -> None:
    """End the experiment, unless it has already ended, and cancel runs that did not begin. `results` are computed
    before the end, so that the verdict is available immediately."""
    judged = {"verdict": results["verdict"], "summary": _summary(experiment, results)} if results else {}
    jobs.end(experiment, status, cause, **judged)
    mine = jobs.of_this_start(experiment)
    if status != DONE:
        services.cancel_queued_runs(experiment, f"not started: {cause}")
    if not mine.exists():
        return  # it was queued again, and now belongs to another worker
    experiment.refresh_from_db()
    kept = results_of(experiment)  # so that no page has to wait for the comparison
    if not judged:
        mine.update(summary=_summary(experiment, kept))
    jobs.send_next(Experiment)


def _summary(experiment: Experiment, results: ExperimentResults) -> Any:
    return msgspec.to_builtins(of_results(results)) if experiment.matrix_id else {}


def fail_lost(experiment: Experiment, cause: str) -> None:
    """Fail an experiment whose worker was lost during a run; the results of its finished requests are kept. Between
    runs nothing is lost: another worker continues with the next run, or with the results."""
    run = experiment.runs.filter(status=RUNNING).first()
    if run is not None and not was_performed(run):
        if end(run, FAILED, f"{cause}, while {run.step or 'starting'}"):
            close(experiment, FAILED, f"{run}: {cause}")
        return
    if run is not None:
        end(run, DONE)
    if jobs.requeue(experiment, cause):
        jobs.send_next(Experiment)
    else:
        close(experiment, FAILED, f"{cause}, between two runs")


def end_left(attempt: Try, now: datetime | None = None) -> None:
    """End runs whose worker was lost between the cancellation and the stop, so that their pools are removed."""
    for run in Run.objects.filter(status=RUNNING, experiment__status__in=ENDED).select_related("experiment"):
        if jobs.lost(run.experiment, now):
            with attempt(f"run {run.pk}"):
                end(run, *((DONE,) if was_performed(run) else (CANCELLED, run.experiment.cause)))


def execute(run: Run, experiment: Experiment) -> str:
    """Perform one run, from its pool to its results; return the status with which it ended."""
    now = timezone.now()
    queued = Run.objects.filter(
        pk=run.pk, status=QUEUED, experiment__status=RUNNING, experiment__started_at=experiment.started_at
    )
    if not queued.update(status=RUNNING, started_at=now, heartbeat_at=now):
        run.refresh_from_db()
        return run.status
    run.refresh_from_db()
    try:
        _perform(run, experiment)
        end(run, DONE)
    except jobs.Stopped:
        stopped = jobs.of_this_start(experiment).first()
        end(run, CANCELLED, stopped.cause if stopped is not None else "another worker runs the experiment")
    except RunFailed as error:
        end(run, FAILED, str(error), error.log)
    except Exception as error:
        end(run, FAILED, f"{run.step}: {jobs.cause_of(error, EXPECTED)}")
    run.refresh_from_db()
    return run.status


def _perform(run: Run, experiment: Experiment) -> None:
    arm = next(arm for arm in experiment.settled_arms if arm.name == run.arm)
    heartbeat = RunHeartbeat(experiment, run)
    heartbeat.beat(step="reading the trace")
    MODES[experiment.mode].perform(run, experiment, arm, heartbeat)


def end(run: Run, status: str, cause: str = "", log_lines: str = "") -> bool:
    """Store the end of a running run, with the results of its finished requests. Return False if it has already
    ended."""
    finished = records.read(run.records_path)
    if finished:
        run.facts["records_sha256"] = provenance.records_sha256(run)
    results = summarize.run_results(finished, run.measured.instances or [], run.experiment.slo)
    values = {
        "status": status,
        "cause": cause[:2_000],
        "log": log_lines[-20_000:],
        "ended_at": timezone.now(),
        "done": sum(record.outcome != "cancelled" for record in finished),
        "facts": run.facts,
        "results": results,
        "warnings": MODES[run.experiment.mode].warnings(run, results),
    }
    ended = of_this_start(run).update(**values)
    log.info("run.ended", run=run.pk, status=status, cause=cause, requests=len(finished))
    return bool(ended)
