"""The mode twin: each run simulates the pool under its arm's policy, in virtual time, without engines and routers."""

import hashlib
import time
from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import UNSET, structs

from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Arm, Experiment, FleetChanges, Run
from controlplane.evidence.experiments.modes.mode import Column, Mode
from controlplane.evidence.experiments.modes.run_inputs import (
    CONTEXT_TOKENS,
    NO_RECORD,
    RunFailed,
    begin,
    load_trace,
    performed,
    requests_of,
)
from controlplane.evidence.experiments.record import RunFacts, TwinFacts, known
from controlplane.evidence.experiments.results.output.effects import duration, shown
from controlplane.evidence.experiments.results.records import Appender, Record
from controlplane.evidence.experiments.results.twin_records import kv_over_time, kv_usage, records_of, token_facts
from controlplane.evidence.experiments.results.validity import twin_warnings
from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.traces.summary import trace_classes
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.expected_error import described
from controlplane.evidence.twin.pool_model import Modelled, NotModelled, is_calibrated, twin_of
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.tier_facts import tier_facts
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.jobs import ENDED, Heartbeat
from fleet.kinds import KINDS
from fleet.kinds.kind import twin_model_of
from fleet.kinds.options.option import build
from fleet.models import Pool
from router.contract.values.problem import Problem
from router.policy.schema import document as documents


def perform(run: Run, experiment: Experiment, arm: Arm, heartbeat: Heartbeat) -> None:
    """Perform the run. Raise RunFailed, jobs.Stopped, BadTrace, TraceError, OSError."""
    trace = load_trace(experiment, run.seed)
    modelled = model_of(experiment, arm)
    requests = requests_of(experiment, trace.requests, context_tokens(modelled.fleet))
    facts = facts_of(modelled, requests)
    begin(run, len(requests), facts)
    began = time.thread_time()

    def beat(done: int, total: int) -> None:
        run.done = done
        heartbeat.beat(step="simulating", done=done)

    heartbeat.beat(step="simulating")
    outcome = simulate(
        modelled.fleet,
        documents.parse(arm.document),
        requests,
        pacing=experiment.pacing,
        seed=run.seed,
        duration_s=experiment.duration_s,
        on_progress=beat,
    )
    _keep(run, records_of(outcome, trace_classes=trace_classes(requests), policy_version=arm.published_version))
    run.kv_path.write_bytes(msgspec.json.encode(kv_over_time(outcome)))
    tiers, loading = tier_facts(outcome) or (UNSET, UNSET)
    facts = structs.replace(
        facts,
        virtual_s=round(outcome.virtual_s, 3),
        cpu_s=round(time.thread_time() - began, 3),
        kv_usage=kv_usage(outcome),
        **token_facts(outcome),
        tiers=tiers,
        loading=loading,
        not_modelled=list(outcome.not_modelled),
        outside=list(outcome.outside),
    )
    run.facts = msgspec.to_builtins(facts)
    performed(run)


def model_of(experiment: Experiment, arm: Arm) -> Modelled:
    """Return the recorded fleet of an arm. Raise RunFailed."""
    kept = provenance.fleet_of(experiment, arm.name)
    if kept is None or not kept.twin:
        raise RunFailed(NO_RECORD)
    return fleets.modelled(kept.twin)


def context_tokens(fleet: TwinFleet) -> int:
    """Return the largest context window that all instances have in common."""
    return min(model.window or min(CONTEXT_TOKENS, model.kv_tokens) for model in fleet.instances.values())


def facts_of(modelled: Modelled, requests: Sequence[TraceRequest]) -> RunFacts:
    return RunFacts(
        instances=list(modelled.fleet.instances),
        twin=TwinFacts(modelled.basis, modelled.about, list(modelled.cautions), modelled.expected),
        load=hashlib.sha256(repr(requests).encode()).hexdigest()[:16],
    )


def _keep(run: Run, records: Sequence[Record]) -> None:
    appender = Appender(run.records_path)
    for record in records:
        appender.append(record)
    appender.close()


def _check(pool: Pool, time_scale: float) -> list[Problem]:
    problems = []
    if time_scale != 1:
        problems.append(Problem("time_scale", time_scale, "the twin runs in virtual time, as fast as it can", "1"))
    try:
        twin_of(pool)
    except NotModelled as error:
        problems.append(Problem("pool", pool.name, str(error)))
    return problems


def _check_fleet(pool: Pool, changes: FleetChanges, path: str) -> list[Problem]:
    part = next((name for name in ("engine", "store") if getattr(changes, name)), "")
    kind = KINDS[pool.kind]
    if part and (is_calibrated(pool) or twin_model_of(kind, build(kind.spec, pool.engine)) is None):
        message = "the calibration holds for the pool's own options, so only replicas can be changed"
        return [Problem(f"{path}.{part}", getattr(changes, part), message)]
    try:
        twin_of(pool, changes.store)
    except NotModelled as error:
        return [Problem(path, msgspec.to_builtins(changes), str(error))]
    return []


def _eta_s(experiment: Experiment, runs: Sequence[Run], now: datetime) -> float | None:
    """Estimate the seconds left at the pace so far; all runs have about the same number of requests."""
    each = max((run.total for run in runs), default=0)
    played = sum(each if run.status in ENDED else run.done for run in runs)
    took = sum(((run.ended_at or now) - run.started_at).total_seconds() for run in runs if run.started_at)
    if not played or not took:
        return None
    return max(1.0, took * (each * len(runs) - played) / played)


def _about(experiment: Experiment) -> dict[str, str]:
    twin = next((twin for run in experiment.runs.all() if (twin := run.measured.twin)), None)
    simulated = f"in the twin, {twin.about}; no engine was started" if twin else "in the twin; no engine is started"
    return {
        "Pool": experiment.pool,
        "Simulated": simulated,
        "Expected error": described(twin.expected if twin else None),
    }


def _by_tier(run: Run, key: str, unit: str) -> str:
    """Format this fact for every tier below the GPU that has it."""
    known = {name: tier[key] for name, tier in (run.measured.tiers or {}).items() if key in tier}
    return ", ".join(f"{name} {shown(value, unit)}" for name, value in known.items()) or shown(None)


def _kv_used(key: str) -> Column:
    return Column(f"KV used, {key}", lambda run: shown((run.measured.kv_usage or {}).get(key), "%"))


TWIN = Mode(
    name="twin",
    title="twin: simulated",
    badge="simulated in the twin",
    scales_time=False,
    perform=perform,
    check=_check,
    check_fleet=_check_fleet,
    simulated=True,
    eta_s=_eta_s,
    warnings=lambda run, results: twin_warnings(results, run.measured),
    time=lambda experiment: "simulated in the twin, in virtual time",
    about=_about,
    columns=(
        Column("Virtual time", lambda run: duration(run.measured.virtual_s or None)),
        _kv_used("mean"),
        _kv_used("peak"),
        Column("Second token, mean", lambda run: shown(known(run.measured.second_token_ms), "ms")),
        Column("Interruptions, mean", lambda run: shown(known(run.measured.interruptions))),
        Column("KV transfers, mean", lambda run: shown(known(run.measured.transfers))),
        Column("KV loaded from tiers", lambda run: _by_tier(run, "read_gb", "GB")),
        Column("Time of loads", lambda run: _by_tier(run, "load_s", "s")),
        Column("Drive writes per day", lambda run: _by_tier(run, "dwpd", "")),
    ),
    columns_note=(
        "“KV used” is the share of the KV blocks, of all instances, second by second of the virtual time. “Second "
        "token” is the time until then: a decoder that gets its KV from another instance delays it, not the first. "
        "“Interruptions” counts the prompts of others that were computed between two tokens of an answer, “KV "
        "transfers” how often KV came from another instance or a shared store before it. “KV loaded "
        "from tiers” came from host memory, drives or a shared store instead of being computed; drives are rated for "
        "one write per day over five years."
    ),
)
