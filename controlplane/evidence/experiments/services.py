"""Starts and cancels experiments."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Arm, Experiment, FleetChanges, Run
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.modes.run_inputs import NO_RECORD
from controlplane.evidence.experiments.provenance import product
from controlplane.evidence.experiments.record import ExperimentRecord, Repeated, Selection
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.experiments.start.arms import Base, resolve
from controlplane.evidence.experiments.start.body import ExpectIn, ExperimentIn
from controlplane.evidence.traces import library
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.types import BadTrace
from controlplane.people.audit.services import Actor, record
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import NoSuchPolicy
from fleet import jobs
from fleet.jobs import CANCELLED, QUEUED
from fleet.models import Pool
from fleet.selectors import pools
from router.contract.values.problem import InvalidInput, Problem

RUNS_MAX = 60


# Checks expectations against the arms and the SLO of their experiment
_PAIRED = [key for key, metric in METRICS.items() if metric.paired]
_NEED_SLO = [key for key, metric in METRICS.items() if metric.needs_slo]


def check(items: Sequence[ExpectIn], arms: Collection[str], has_slo: bool) -> list[Problem]:
    """Return the problems of expectations. `arms` is empty if an arm is invalid, which is reported separately."""
    return [
        Problem(f"expect.{index}.{field}", getattr(item, field), message)
        for index, item in enumerate(items)
        for field, holds, message in _rules(arms, has_slo)
        if not holds(item)
    ]


def _rules(arms: Collection[str], has_slo: bool) -> tuple[tuple[str, Callable[[ExpectIn], Any], str], ...]:
    named = f"arms are {', '.join(sorted(arms))}"
    return (
        ("metric", lambda item: item.metric in METRICS, f"allowed: {', '.join(METRICS)}"),
        (
            "metric",
            lambda item: has_slo or item.metric not in _NEED_SLO,
            "needs `slo`, which the experiment does not set",
        ),
        (
            "metric",
            lambda item: not _by_interval(item) or item.metric not in METRICS or item.metric in _PAIRED,
            f"has no interval; with relative_to or confidence, allowed: {', '.join(_PAIRED)}",
        ),
        ("arm", lambda item: not item.arm or not arms or item.arm in arms, named),
        ("relative_to", lambda item: not item.relative_to or not arms or item.relative_to in arms, named),
        ("relative_to", lambda item: not item.relative_to or item.relative_to != item.arm, "needs another arm"),
        ("max", lambda item: item.relative_to or _any(item.min, item.max), "needs a min, a max, or both"),
        (
            "max",
            lambda item: not item.relative_to or not _any(item.min, item.max),
            "not with relative_to, but max_ratio",
        ),
        (
            "max_ratio",
            lambda item: not item.relative_to or _any(item.min_ratio, item.max_ratio),
            "relative_to needs a min_ratio, a max_ratio, or both",
        ),
        (
            "max_ratio",
            lambda item: item.relative_to or not _any(item.min_ratio, item.max_ratio),
            "needs relative_to: the arm to which it is a ratio",
        ),
    )


def _by_interval(item: ExpectIn) -> bool:
    return bool(item.relative_to or item.confidence)


def _any(*limits: float | None) -> bool:
    return any(limit is not None for limit in limits)


def start_experiment(asked: ExperimentIn, actor: Actor) -> Experiment:
    """Check, store and queue an experiment. InvalidInput lists every problem."""
    experiment = settled(asked, actor)
    with transaction.atomic():
        store(experiment)
        record(actor, "experiment.start", f"experiment {experiment.pk}", after=experiment.body)
    jobs.send(experiment)
    return experiment


def settled(asked: ExperimentIn, actor: Actor, most_runs: int = RUNS_MAX) -> Experiment:
    """Return the experiment as an unsaved row. InvalidInput lists every problem."""
    pool = pools().filter(name=asked.pool).first()
    check_fleet = partial(_check_fleet, asked.mode, pool)
    arms, problems = resolve(asked.arms, policy_version, "" if pool is None else pool.policy, check_fleet)
    pacing, trace_problems = _check_trace(asked)
    problems += (
        trace_problems
        + _check_pool(asked, pool)
        + _check_size(asked, most_runs)
        + check(asked.expect, {arm.name for arm in arms}, bool(asked.slo))
    )
    if problems or pool is None:
        raise InvalidInput(problems=problems)
    asked = _keep_trace(asked, actor)
    return Experiment(
        **{name: getattr(asked, name) for name in COPIED},
        pacing=pacing,
        arms=[arm.as_dict() for arm in arms],
        expect=[item.model_dump(by_alias=True) for item in asked.expect],
        slo={name: limits.model_dump(exclude_none=True) for name, limits in asked.slo.items()},
        body=asked.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        record=provenance.stored(_record(asked, arms, pacing, pool)),
        actor=actor.name,
    )


def repeat_experiment(experiment: Experiment, actor: Actor) -> Experiment:
    """Start the experiment again from its record: the same documents, fleets and requests. Raise InvalidInput."""
    before = provenance.record_of(experiment)
    if before is None:
        raise InvalidInput(problems=[Problem("", experiment.pk, NO_RECORD)])
    try:
        problem = provenance.changed_trace(before.trace)
    except (library.TraceError, BadTrace) as error:
        problem = str(error)
    if problem:
        raise InvalidInput(problems=[Problem("trace", experiment.trace, problem)])
    again = {"product": product(), "repeats": Repeated(experiment.pk, before.product)}
    values = {name: getattr(experiment, name) for name in (*COPIED, "pacing", "arms", "expect", "slo", "body")}
    made = Experiment(**values, record=experiment.record | msgspec.to_builtins(again), actor=actor.name)
    with transaction.atomic():
        store(made)
        record(actor, "experiment.start", f"experiment {made.pk}", after={"repeats": experiment.pk})
    jobs.send(made)
    return made


def _check_fleet(mode: str, pool: Pool | None, changes: FleetChanges, path: str) -> list[Problem]:
    if pool is None:
        return []
    made = fleets.changed(pool, changes, path)
    return made if isinstance(made, list) else MODES[mode].check_fleet(made, changes, path)


def _record(asked: ExperimentIn, arms: list[Arm], pacing: str, pool: Pool) -> ExperimentRecord:
    made = {arm.name: fleets.changed(pool, arm.fleet, "fleet") for arm in arms}
    changed = {name: each for name, each in made.items() if isinstance(each, Pool)}
    selection = Selection(asked.duration_s, asked.load_factor, pacing, asked.seeds)
    return provenance.settle(selection, asked.trace, arms, changed, simulated=MODES[asked.mode].simulated)


def cancel_experiment(experiment: Experiment, actor: Actor, *, if_match: str | None = None) -> bool:
    """Stop the experiment, within a second if it is running. Return False if it has already ended. Raise
    ChangedMeanwhile."""
    with held(Experiment.objects.filter(pk=experiment.pk), f"experiment {experiment.pk}", if_match):
        if not jobs.cancel(experiment, actor.name, cancelled_by=actor.name):
            return False
        cancel_queued_runs(experiment, experiment.cause)
        record(actor, "experiment.cancel", f"experiment {experiment.pk}")
    return True


def cancel_queued_runs(experiment: Experiment, cause: str) -> None:
    """Cancel the queued runs; a running one stops at the experiment's next heartbeat."""
    # Only runs of this start count, so that a lost worker does not cancel runs of its successor.
    queued = experiment.runs.filter(status=QUEUED, experiment__started_at=experiment.started_at)
    queued.update(status=CANCELLED, cause=cause, ended_at=timezone.now())


COPIED = ("name", "question", "trace", "pool", "mode", "load_factor", "duration_s", "time_scale", "seeds")


def store(experiment: Experiment) -> None:
    """Save the experiment and its runs, ordered by seed, so that a cancelled experiment can compare its arms on the
    first seeds."""
    experiment.save()
    order = [(seed, arm["name"]) for seed in experiment.seeds for arm in experiment.arms]
    Run.objects.bulk_create(
        Run(experiment=experiment, arm=arm, seed=seed, ordinal=number) for number, (seed, arm) in enumerate(order)
    )


def policy_version(name: str, number: int | None) -> Base:
    try:
        policy = policies.policy(name)
        version = policies.live_version(policy) if number is None else policies.version(policy, number)
    except NoSuchPolicy as error:
        raise LookupError(str(error)) from None
    return Base(version.number, version.document)


def _check_trace(asked: ExperimentIn) -> tuple[str, list[Problem]]:
    """Return the trace's pacing, and problems of the trace."""
    try:
        entry = library.entry(asked.trace)
    except library.TraceError as error:
        return "", [Problem("trace", asked.trace, str(error))]
    except BadTrace as error:
        return "", [Problem("trace", asked.trace, f"{error.path}: {error.value}; allowed: {error.allowed}")]
    lacks = ""
    if entry.summary is None or not entry.summary.sessions:
        lacks = "has no sessions, so it is not known which answer a request waits for"
    elif not registry.has_think_times(entry.format):
        lacks = "has no think times"
    if asked.pacing == "closed_loop" and lacks:
        return "", [Problem("pacing", asked.pacing, f"{asked.trace} {lacks}; allowed: timestamps")]
    return (asked.pacing if asked.pacing != "auto" else "timestamps" if lacks else "closed_loop"), []


def _keep_trace(asked: ExperimentIn, actor: Actor) -> ExperimentIn:
    """Replace recorded traffic by a copy, so that every run and every repetition plays the same requests."""
    try:
        return asked.model_copy(update={"trace": library.keep(asked.trace, actor)})
    except (library.TraceError, BadTrace) as error:
        raise InvalidInput(problems=[Problem("trace", asked.trace, str(error))]) from None


def _check_pool(asked: ExperimentIn, pool: Pool | None) -> list[Problem]:
    if pool is None:
        known = ", ".join(Pool.objects.filter(ephemeral_owner="", removed=False).values_list("name", flat=True))
        return [Problem("pool", asked.pool, f"there is no such pool; there are {known or 'none'}")]
    return MODES[asked.mode].check(pool, asked.time_scale)


def _check_size(asked: ExperimentIn, most_runs: int) -> list[Problem]:
    runs = len(asked.arms) * len(asked.seeds)
    if runs > most_runs:
        return [Problem("seeds", len(asked.seeds), f"{runs} runs (arms × seeds); allowed: at most {most_runs}")]
    return []
