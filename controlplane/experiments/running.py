"""Running an experiment: each run in turn, its figures kept whatever happens to it."""

import contextlib
import time
from typing import Any

import redis
import structlog
from django.db import DatabaseError
from django.utils import timezone

from controlplane.experiments import arena, figures, library, services
from controlplane.experiments.arena import RunFailed
from controlplane.experiments.models import CANCELLED, DONE, FAILED, QUEUED, RUNNING, Experiment, Run
from controlplane.experiments.pulse import Pulse, Stopped
from controlplane.experiments.replay import records
from controlplane.experiments.replay.drive import Load
from controlplane.experiments.replay.prompts import PromptWriter
from controlplane.experiments.replay.thread import ReplayThread
from controlplane.experiments.results import results_of
from controlplane.experiments.traces import formats
from controlplane.experiments.traces.summary import trace_classes
from controlplane.experiments.traces.types import BadTrace, TraceRequest
from controlplane.experiments.validity import warnings_of
from fleet.models import Pool

log = structlog.get_logger(__name__)
LOOK_S = 0.25


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
    except Stopped:
        experiment.refresh_from_db()
        end(run, CANCELLED, experiment.cause or "stopped")
    except RunFailed as error:
        end(run, FAILED, str(error), error.log)
    except (BadTrace, library.TraceError, OSError, redis.RedisError) as error:
        end(run, FAILED, f"{run.step}: {error}")
    except Exception as error:
        log.exception("run.crashed", run=run.pk)
        end(run, FAILED, f"{run.step}: {type(error).__name__}: {error}")
    finally:
        with contextlib.suppress(redis.RedisError, DatabaseError):  # the reaper tries again
            arena.tear_down(run.pool_name)
    run.refresh_from_db()
    return run.status


def _perform(run: Run, experiment: Experiment) -> None:
    arm = next(arm for arm in experiment.arms if arm["name"] == run.arm)
    pulse = Pulse(run)
    pulse.beat("reading the trace")
    trace = library.load(experiment.trace, run.seed)
    pool = arena.set_up(run, experiment, arm, pulse)
    requests = _requests(experiment, trace.requests, arena.context_tokens(pool))
    run.facts = {"instances": arena.instance_names(pool), "context_tokens": arena.context_tokens(pool)}
    run.total = len(requests)
    Run.objects.filter(pk=run.pk).update(facts=run.facts, total=run.total)
    run.records_path.unlink(missing_ok=True)
    thread = ReplayThread(
        _load(run, experiment, pool, requests), arena.router_urls(), arena.instance_urls(pool), run.records_path
    )
    _watch(thread, run, arm, pulse)


def _requests(experiment: Experiment, requests: tuple[TraceRequest, ...], context: int) -> list[TraceRequest]:
    """The window, at the load asked for. A window is one of the trace: a higher load plays it in less time."""
    within = formats.window(requests, experiment.duration_s, context)
    if not within:
        raise RunFailed(f"no request of {experiment.trace} begins in its first {experiment.duration_s:g} s and fits")
    return formats.faster(within, experiment.load_factor)


def _load(run: Run, experiment: Experiment, pool: Pool, requests: list[TraceRequest]) -> Load:
    return Load(
        requests=requests,
        pacing=experiment.pacing,
        duration_s=experiment.duration_s,
        time_scale=experiment.time_scale,
        model=pool.model,
        writer=PromptWriter(bytes_per_token=arena.bytes_per_token(pool)),
        headers={"x-weir-pool": pool.name},
        classes=trace_classes(requests),
        request_ids=pool.name,
    )


def _watch(thread: ReplayThread, run: Run, arm: dict[str, Any], pulse: Pulse) -> None:
    """Beat while the replay runs, put back what Redis lost, stop it when it is no longer wanted."""
    thread.start()
    kept = time.monotonic()
    try:
        while thread.alive:
            time.sleep(LOOK_S)
            pulse.beat("replaying", thread.progress.done)
            if time.monotonic() - kept > 2:
                kept = time.monotonic()
                with contextlib.suppress(redis.RedisError):
                    arena.keep_policy(run, arm)
    finally:
        thread.stop()
        run.done = thread.progress.done
    facts = thread.finish()
    run.facts |= facts.as_dict()


def end(run: Run, status: str, cause: str = "", log_lines: str = "") -> bool:
    """Write down how a running run ended, with the figures of every request that finished; False when it had ended."""
    found = records.read(run.records_path)
    own = figures.run_figures(found, run.facts.get("instances", []))
    values = {
        "status": status,
        "cause": cause[:2_000],
        "log": log_lines[-20_000:],
        "ended_at": timezone.now(),
        "done": sum(record.outcome != "cancelled" for record in found),
        "facts": run.facts,
        "results": own,
        "warnings": warnings_of(own, run.facts, run.experiment.time_scale),
    }
    ended = Run.objects.filter(pk=run.pk, status=RUNNING).update(**values)
    log.info("run.ended", run=run.pk, status=status, cause=cause, requests=len(found))
    return bool(ended)
