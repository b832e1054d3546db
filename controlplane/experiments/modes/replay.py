"""One run over HTTP: a pool of its own, the arm's policy in the live routers, every request as a client sends it."""

import contextlib
import time
from typing import Any

import redis
from django.db import DatabaseError

from controlplane.experiments.models import Experiment, Run
from controlplane.experiments.modes import ephemeral_pool
from controlplane.experiments.modes.run_inputs import begin, requests_of
from controlplane.experiments.replay.drive import OfferedLoad
from controlplane.experiments.replay.prompts import PromptWriter
from controlplane.experiments.replay.thread import ReplayThread
from controlplane.traces import library
from controlplane.traces.summary import trace_classes
from controlplane.traces.types import TraceRequest
from fleet.jobs import Heartbeat
from fleet.models import Pool

LOOK_S = 0.25


def perform(run: Run, experiment: Experiment, arm: dict[str, Any], heartbeat: Heartbeat) -> None:
    """RunFailed, jobs.Stopped, BadTrace, TraceError, OSError, RedisError."""
    try:
        _play(run, experiment, arm, heartbeat)
    finally:
        with contextlib.suppress(redis.RedisError, DatabaseError):  # jobs.expire tries again
            ephemeral_pool.tear_down(run.pool_name)


def _play(run: Run, experiment: Experiment, arm: dict[str, Any], heartbeat: Heartbeat) -> None:
    trace = library.load(experiment.trace, run.seed)
    pool = ephemeral_pool.set_up(run, experiment, arm, heartbeat)
    requests = requests_of(experiment, trace.requests, ephemeral_pool.context_tokens(pool))
    facts = {"instances": ephemeral_pool.instance_names(pool), "context_tokens": ephemeral_pool.context_tokens(pool)}
    begin(run, len(requests), facts)
    thread = ReplayThread(
        _load(run, experiment, pool, requests),
        ephemeral_pool.router_urls(),
        ephemeral_pool.instance_urls(pool),
        run.records_path,
    )
    _watch(thread, run, arm, heartbeat)


def _load(run: Run, experiment: Experiment, pool: Pool, requests: list[TraceRequest]) -> OfferedLoad:
    return OfferedLoad(
        requests=requests,
        pacing=experiment.pacing,
        duration_s=experiment.duration_s,
        time_scale=experiment.time_scale,
        model=pool.model,
        writer=PromptWriter(bytes_per_token=ephemeral_pool.bytes_per_token(pool)),
        headers={"x-weir-pool": pool.name},
        classes=trace_classes(requests),
        request_ids=pool.name,
    )


def _watch(thread: ReplayThread, run: Run, arm: dict[str, Any], heartbeat: Heartbeat) -> None:
    """Beat while the replay runs, put back what Redis lost, stop it when it is no longer wanted."""
    thread.start()
    kept = time.monotonic()
    try:
        while thread.alive:
            time.sleep(LOOK_S)
            heartbeat.beat(step="replaying", done=thread.progress.done)
            if time.monotonic() - kept > 2:
                kept = time.monotonic()
                with contextlib.suppress(redis.RedisError):
                    ephemeral_pool.keep_policy(run, arm)
    finally:
        thread.stop()
        run.done = thread.progress.done
    facts = thread.finish()
    run.facts |= facts.as_dict()
