"""One run in the twin: the pool as it is modelled, under the arm's policy, in virtual time. No engine, no router."""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from controlplane.experiments.models import Experiment, Run
from controlplane.experiments.modes.run_inputs import CONTEXT_TOKENS, RunFailed, begin, requests_of, version_of
from controlplane.experiments.modes.twin_records import kv_usage, records_of
from controlplane.experiments.results.records import Appender, Record
from controlplane.traces import library
from controlplane.traces.summary import trace_classes
from controlplane.traces.types import TraceRequest
from controlplane.twin.pool_model import Modelled, NotModelled, twin_of
from controlplane.twin.simulation.simulate import simulate
from controlplane.twin.simulation.types import TwinFleet
from fleet.jobs import Heartbeat
from fleet.selectors import pools
from router.policy.schema import document as documents


def perform(run: Run, experiment: Experiment, arm: dict[str, Any], heartbeat: Heartbeat) -> None:
    """RunFailed, jobs.Stopped, BadTrace, TraceError, OSError."""
    trace = library.load(experiment.trace, run.seed)
    modelled = model_of(experiment.pool)
    requests = requests_of(experiment, trace.requests, context_tokens(modelled.fleet))
    begin(run, len(requests), facts_of(modelled, requests))
    began = time.thread_time()

    def beat(done: int, total: int) -> None:
        run.done = done
        heartbeat.beat(step="simulating", done=done)

    heartbeat.beat(step="simulating")
    outcome = simulate(
        modelled.fleet,
        documents.parse(arm["document"]),
        requests,
        pacing=experiment.pacing,
        seed=run.seed,
        duration_s=experiment.duration_s,
        on_progress=beat,
    )
    _keep(run, records_of(outcome, trace_classes=trace_classes(requests), policy_version=version_of(arm)))
    run.facts |= {
        "virtual_s": round(outcome.virtual_s, 3),
        "cpu_s": round(time.thread_time() - began, 3),
        "kv_usage": kv_usage(outcome),
        "not_modelled": list(outcome.not_modelled),
    }


def model_of(name: str) -> Modelled:
    """RunFailed."""
    pool = pools().filter(name=name).first()
    if pool is None:
        raise RunFailed(f"pool {name} is gone")
    try:
        return twin_of(pool)
    except NotModelled as error:
        raise RunFailed(str(error)) from None


def context_tokens(fleet: TwinFleet) -> int:
    """What every instance takes; no engine is asked."""
    return min(model.window or min(CONTEXT_TOKENS, model.kv_tokens) for model in fleet.instances.values())


def facts_of(modelled: Modelled, requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """`load` tells which runs played the same requests."""
    return {
        "instances": list(modelled.fleet.instances),
        "twin": {"basis": modelled.basis, "about": modelled.about, "cautions": list(modelled.cautions)},
        "load": hashlib.sha256(repr(requests).encode()).hexdigest()[:16],
    }


def _keep(run: Run, found: Sequence[Record]) -> None:
    appender = Appender(run.records_path)
    for record in found:
        appender.append(record)
    appender.close()
