"""Running an experiment: each run in turn, its figures kept whatever happens to it."""

from typing import Any

import redis
import structlog
from django.utils import timezone

from controlplane.experiments import services
from controlplane.experiments.heartbeat import RunHeartbeat, RunStopped
from controlplane.experiments.models import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Experiment, Run
from controlplane.experiments.modes import replay, twin
from controlplane.experiments.modes.run_inputs import RunFailed
from controlplane.experiments.results import records, summarize
from controlplane.experiments.results.assemble import results_of
from controlplane.experiments.results.validity import replay_warnings, twin_warnings
from controlplane.traces import library
from controlplane.traces.types import BadTrace

log = structlog.get_logger(__name__)
MODES = {"replay": replay.perform, "twin": twin.perform}


def run_experiment(experiment_id: int) -> None:
    """Do all of it, unless somebody else does; a second message for the same experiment does nothing."""
    if not services.claim(experiment_id):
        return
    experiment = Experiment.objects.get(pk=experiment_id)
    for run in experiment.runs.all():
        status = execute(run, experiment)
        if status != DONE:
            close(experiment_id, status, f"{run}: {run.cause}" if status == FAILED else run.cause)
            return
    close(experiment_id, DONE, "")


def close(experiment_id: int, status: str, cause: str) -> None:
    """End the experiment, unless it has been ended meanwhile; runs that did not begin are cancelled."""
    values = {"status": status, "cause": cause, "ended_at": timezone.now()}
    Experiment.objects.filter(pk=experiment_id, status=RUNNING).update(**values)
    if status != DONE:
        services.cancel_queued_runs(experiment_id, f"not started: {cause}")
    # The comparison is made here, where nobody waits for it.
    results_of(Experiment.objects.get(pk=experiment_id))


def execute(run: Run, experiment: Experiment) -> str:
    """One run from its pool to its figures; the status that it ended with."""
    now = timezone.now()
    claimed = Run.objects.filter(pk=run.pk, status=QUEUED, experiment__status=RUNNING)
    if not claimed.update(status=RUNNING, started_at=now, heartbeat_at=now):
        run.refresh_from_db()
        return run.status
    run.refresh_from_db()
    try:
        _perform(run, experiment)
        end(run, DONE)
    except RunStopped:
        experiment.refresh_from_db()
        end(run, CANCELLED, experiment.cause or "stopped")
    except RunFailed as error:
        end(run, FAILED, str(error), error.log)
    except (BadTrace, library.TraceError, OSError, redis.RedisError) as error:
        end(run, FAILED, f"{run.step}: {error}")
    except Exception as error:
        log.exception("run.crashed", run=run.pk)
        end(run, FAILED, f"{run.step}: {type(error).__name__}: {error}")
    run.refresh_from_db()
    return run.status


def _perform(run: Run, experiment: Experiment) -> None:
    arm = next(arm for arm in experiment.arms if arm["name"] == run.arm)
    pulse = RunHeartbeat(run)
    pulse.beat("reading the trace")
    MODES[experiment.mode](run, experiment, arm, pulse)


def _warnings(run: Run, own: dict[str, Any]) -> list[str]:
    if run.experiment.mode == "twin":
        return twin_warnings(own, run.facts)
    return replay_warnings(own, run.facts, run.experiment.time_scale)


def end(run: Run, status: str, cause: str = "", log_lines: str = "") -> bool:
    """Write down how a running run ended, with the figures of every request that finished; False when it had ended."""
    found = records.read(run.records_path)
    own = summarize.run_figures(found, run.facts.get("instances", []))
    values = {
        "status": status,
        "cause": cause[:2_000],
        "log": log_lines[-20_000:],
        "ended_at": timezone.now(),
        "done": sum(record.outcome != "cancelled" for record in found),
        "facts": run.facts,
        "results": own,
        "warnings": _warnings(run, own),
    }
    ended = Run.objects.filter(pk=run.pk, status=RUNNING).update(**values)
    log.info("run.ended", run=run.pk, status=status, cause=cause, requests=len(found))
    return bool(ended)
