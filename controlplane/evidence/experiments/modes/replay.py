"""Replay: each run creates a new pool and sends it the requests over HTTP, through the live routers."""

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import redis
from django.db import DatabaseError

from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Arm, Experiment, FleetChanges, Run
from controlplane.evidence.experiments.modes import ephemeral_pool
from controlplane.evidence.experiments.modes.gpu_use import GpuUse, described
from controlplane.evidence.experiments.modes.mode import Column, Mode
from controlplane.evidence.experiments.modes.run_inputs import begin, load_trace, performed, requests_of
from controlplane.evidence.experiments.record import RunFacts, known
from controlplane.evidence.experiments.replay.drive import OfferedLoad
from controlplane.evidence.experiments.replay.prompts import PromptWriter
from controlplane.evidence.experiments.replay.thread import ReplayThread
from controlplane.evidence.experiments.results.output.effects import shown
from controlplane.evidence.experiments.results.validity import replay_warnings
from controlplane.evidence.traces.summary import trace_classes
from fleet.jobs import ENDED, RUNNING, Heartbeat
from fleet.kinds import KINDS
from fleet.models import Pool
from router.contract.values.problem import Problem

LOOK_S = 0.25
OVERHEAD_S = 12.0  # time to start and to remove a run's pool


def perform(run: Run, experiment: Experiment, arm: Arm, heartbeat: Heartbeat) -> None:
    """Perform the run. Raise RunFailed, jobs.Stopped, BadTrace, TraceError, OSError, RedisError."""
    try:
        _play(run, experiment, arm, heartbeat)
    finally:
        with contextlib.suppress(redis.RedisError, DatabaseError):  # jobs.expire tries again
            ephemeral_pool.tear_down(run.pool_name)


def _play(run: Run, experiment: Experiment, arm: Arm, heartbeat: Heartbeat) -> None:
    trace = load_trace(experiment, run.seed)
    pool = ephemeral_pool.set_up(run, experiment, arm, heartbeat)
    requests = requests_of(experiment, trace.requests, ephemeral_pool.context_tokens(pool))
    facts = RunFacts(
        instances=ephemeral_pool.endpoint_names(pool),
        context_tokens=ephemeral_pool.context_tokens(pool),
        host=provenance.host(),
        nodes=provenance.nodes(pool),
    )
    begin(run, len(requests), facts)
    thread = ReplayThread(
        OfferedLoad(
            requests=requests,
            pacing=experiment.pacing,
            duration_s=experiment.duration_s,
            time_scale=experiment.time_scale,
            model=pool.model,
            writer=PromptWriter(bytes_per_token=ephemeral_pool.bytes_per_token(pool)),
            headers={"x-weir-pool": pool.name},
            classes=trace_classes(requests),
            request_ids=pool.name,
        ),
        ephemeral_pool.router_urls(),
        ephemeral_pool.instance_urls(pool),
        run.records_path,
    )
    _watch(thread, run, arm, heartbeat)


def _watch(thread: ReplayThread, run: Run, arm: Arm, heartbeat: Heartbeat) -> None:
    """Send heartbeats during the replay, store the GPU use, publish the policy again if Redis lost it, and stop if the
    run is cancelled."""
    thread.start()
    began = kept = time.monotonic()
    gpus = GpuUse(tuple(run.measured.nodes or ()), run.gpu_path)
    try:
        while not thread.ended_within(LOOK_S):
            heartbeat.beat(step="replaying", done=thread.progress.done)
            with contextlib.suppress(DatabaseError, OSError):
                gpus.look(time.monotonic() - began)
            if time.monotonic() - kept > 2:
                kept = time.monotonic()
                with contextlib.suppress(redis.RedisError):
                    ephemeral_pool.keep_policy(run, arm)
    finally:
        thread.stop()
        run.done = thread.progress.done
    facts = thread.finish()
    run.facts |= {**facts.as_dict(), "gpu_use": msgspec.to_builtins(gpus.facts())}
    performed(run)


def _check(pool: Pool, time_scale: float) -> list[Problem]:
    if time_scale == 1 or KINDS[pool.kind].time_scale_option:
        return []
    return [Problem("time_scale", time_scale, f"pool {pool.name} runs {pool.kind}, which runs in real time", "1")]


def _check_fleet(pool: Pool, changes: FleetChanges, path: str) -> list[Problem]:
    if changes.store:
        message = "a replay uses the store that runs: only the twin can change its options"
        return [Problem(f"{path}.store", changes.store, message, "mode twin")]
    if KINDS[pool.kind].simulated:
        return []
    message = f"pool {pool.name} runs {pool.kind}: a replay can change the fleet of simulated engines only"
    return [Problem(path, msgspec.to_builtins(changes), message, "mode twin, or a pool of the kind sim")]


def _eta_s(experiment: Experiment, runs: Sequence[Run], now: datetime) -> float:
    """Estimate the seconds left from the load and the start-up time of pools; a slow fleet takes longer."""
    each = experiment.duration_s / experiment.time_scale / experiment.load_factor + OVERHEAD_S
    left = sum(each for run in runs if run.status not in ENDED)
    for run in runs:
        if run.status == RUNNING and run.started_at:
            left -= min((now - run.started_at) / timedelta(seconds=1), each - 1)
    return max(1.0, left)


def _time(experiment: Experiment) -> str:
    if experiment.time_scale == 1:
        return "as measured"
    return f"simulated, time scale {experiment.time_scale:g}: measured on the wall clock × {experiment.time_scale:g}"


def _engines_late(run: Run) -> str:
    lag = known(run.measured.sim_lag_p99_s)
    return shown(None if lag is None else lag * 1000, "ms")


REPLAY = Mode(
    name="replay",
    title="replay: requests over HTTP",
    badge="",
    scales_time=True,
    perform=perform,
    check=_check,
    check_fleet=_check_fleet,
    simulated=False,
    eta_s=_eta_s,
    warnings=lambda run, results: replay_warnings(results, run.measured, run.experiment.time_scale),
    time=_time,
    about=lambda experiment: {"Pool": f"like {experiment.pool}"},
    columns=(
        Column("Client late p99", lambda run: shown(run.results.get("late_wall_p99_ms"), "ms")),
        Column("Engines late p99", _engines_late),
        Column("GPU use", lambda run: described(run.measured)),
        Column("CPU", lambda run: shown(known(run.measured.machine_busy), "%")),
    ),
    columns_note="“Late” is on the wall clock: the delay of this machine behind the load and behind the engine model.",
)
