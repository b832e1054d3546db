"""Starting and cancelling experiments.

InvalidExperiment
└── .faults: every Fault(path, value, message)
"""

from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.experiments.arms import Arm, Fault, resolve
from controlplane.experiments.body import ExperimentIn
from controlplane.experiments.models import Experiment, Run
from controlplane.experiments.results.metrics import METRICS
from controlplane.policies import selectors as policies
from controlplane.policies.errors import NoSuchPolicy
from controlplane.traces import library
from controlplane.traces.formats import registry
from controlplane.traces.types import BadTrace
from controlplane.twin.pool_model import NotModelled, twin_of
from fleet import jobs
from fleet.jobs import CANCELLED, QUEUED
from fleet.kinds import KINDS
from fleet.models import Pool
from fleet.selectors import pools

RUNS_MAX = 60


class InvalidExperiment(Exception):
    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        super().__init__("; ".join(f"{fault.path}: {fault.message}" for fault in faults))


def start_experiment(asked: ExperimentIn, actor: Actor) -> Experiment:
    """Check everything, write it down and queue it. InvalidExperiment holds every fault."""
    arms, faults = resolve(asked.arms, _policy_version, _own_policy(asked.pool))
    pacing, trace_faults = _check_trace(asked)
    faults += trace_faults + _check_pool(asked) + _check_size(asked) + _check_expect(asked, arms)
    if faults:
        raise InvalidExperiment(faults)
    asked = _keep_trace(asked, actor)
    with transaction.atomic():
        experiment = _create(asked, arms, pacing, actor)
        record(actor, "experiment.start", f"experiment {experiment.pk}", after=experiment.body)
    jobs.send(experiment)
    return experiment


def _own_policy(pool: str) -> str:
    return str(Pool.objects.filter(name=pool).values_list("policy", flat=True).first() or "")


def cancel_experiment(experiment: Experiment, actor: Actor) -> bool:
    """Stop it, within a second when it runs; False when it had ended before."""
    with transaction.atomic():
        if not jobs.cancel(experiment, actor.name, cancelled_by=actor.name):
            return False
        cancel_queued_runs(experiment, experiment.cause)
        record(actor, "experiment.cancel", f"experiment {experiment.pk}")
    return True


def cancel_queued_runs(experiment: Experiment, cause: str) -> None:
    """A run that has begun stops at the next heartbeat of its experiment."""
    experiment.runs.filter(status=QUEUED).update(status=CANCELLED, cause=cause, ended_at=timezone.now())


def _create(asked: ExperimentIn, arms: list[Arm], pacing: str, actor: Actor) -> Experiment:
    fields = ("name", "question", "trace", "pool", "mode", "load_factor", "duration_s", "time_scale", "seeds")
    experiment = Experiment.objects.create(
        **{name: getattr(asked, name) for name in fields},
        pacing=pacing,
        arms=[arm.as_dict() for arm in arms],
        expect=[item.model_dump(by_alias=True) for item in asked.expect],
        body=asked.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        actor=actor.name,
    )
    # Seed by seed, so that a cancelled experiment has compared its arms at least on the first seeds.
    order = [(seed, arm) for seed in asked.seeds for arm in arms]
    Run.objects.bulk_create(
        Run(experiment=experiment, arm=arm.name, seed=seed, ordinal=number) for number, (seed, arm) in enumerate(order)
    )
    return experiment


def _policy_version(name: str, number: int | None) -> tuple[int, dict[str, Any]]:
    try:
        policy = policies.policy(name)
        version = policies.live_version(policy) if number is None else policies.version(policy, number)
    except NoSuchPolicy as error:
        raise LookupError(str(error)) from None
    return version.number, version.document


def _check_trace(asked: ExperimentIn) -> tuple[str, list[Fault]]:
    """(pacing, faults)."""
    try:
        entry = library.entry(asked.trace)
    except library.TraceError as error:
        return "", [Fault("trace", asked.trace, str(error))]
    except BadTrace as error:
        return "", [Fault("trace", asked.trace, f"{error.path}: {error.value}; allowed is {error.allowed}")]
    lacks = ""
    if not (entry.summary or {}).get("sessions"):
        lacks = "has no sessions, so nothing says which answer a request waits for"
    elif not registry.tells_think_times(entry.format):
        lacks = "has no think times"
    if asked.pacing == "closed_loop" and lacks:
        return "", [Fault("pacing", asked.pacing, f"{asked.trace} {lacks}; allowed is timestamps")]
    return (asked.pacing if asked.pacing != "auto" else "timestamps" if lacks else "closed_loop"), []


def _keep_trace(asked: ExperimentIn, actor: Actor) -> ExperimentIn:
    """Every run plays the same requests, and so does the experiment when it is started again."""
    try:
        return asked.model_copy(update={"trace": library.keep(asked.trace, actor)})
    except (library.TraceError, BadTrace) as error:
        raise InvalidExperiment([Fault("trace", asked.trace, str(error))]) from None


def _check_pool(asked: ExperimentIn) -> list[Fault]:
    pool = pools().filter(name=asked.pool).first()
    if pool is None:
        known = ", ".join(Pool.objects.filter(ephemeral_owner="", removed=False).values_list("name", flat=True))
        return [Fault("pool", asked.pool, f"there is no such pool; there are {known or 'none'}")]
    if asked.mode == "twin":
        return _check_twin(asked, pool)
    if asked.time_scale != 1 and not KINDS[pool.kind].time_scale_option:
        message = f"pool {pool.name} runs {pool.kind}, which takes its own time; allowed is 1"
        return [Fault("time_scale", asked.time_scale, message)]
    return []


def _check_twin(asked: ExperimentIn, pool: Pool) -> list[Fault]:
    faults = []
    if asked.time_scale != 1:
        message = "the twin's time is virtual: it runs as fast as it can; allowed is 1"
        faults.append(Fault("time_scale", asked.time_scale, message))
    try:
        twin_of(pool)
    except NotModelled as error:
        faults.append(Fault("pool", asked.pool, str(error)))
    return faults


def _check_size(asked: ExperimentIn) -> list[Fault]:
    runs = len(asked.arms) * len(asked.seeds)
    if runs > RUNS_MAX:
        return [Fault("seeds", len(asked.seeds), f"{runs} runs; allowed are {RUNS_MAX} (arms × seeds)")]
    return []


def _check_expect(asked: ExperimentIn, arms: list[Arm]) -> list[Fault]:
    names = {arm.name for arm in arms}
    rules: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("metric", lambda item: item.metric in METRICS, f"allowed are {', '.join(METRICS)}"),
        ("arm", lambda item: not item.arm or not names or item.arm in names, f"arms are {', '.join(sorted(names))}"),
        ("max", lambda item: item.min is not None or item.max is not None, "a min, a max, or both"),
    )
    return [
        Fault(f"expect.{index}.{field}", getattr(item, field), message)
        for index, item in enumerate(asked.expect)
        for field, holds, message in rules
        if not holds(item)
    ]
