"""Queries of the fleet."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Case, QuerySet, When
from django.utils import timezone

from fleet.engine.law import Law, law_from
from fleet.jobs import DONE
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch, twin_model_of
from fleet.kinds.options.option import build
from fleet.kinds.sim.sim_store import SIM_STORE
from fleet.models import Calibration, DesiredState, Fleet, Instance, InstanceEvent, Node, Pool, State
from fleet.node import logs
from fleet.snapshot import pool_spec, scale_of
from fleet.spec.fleet_spec import config_hash
from fleet.systems.prices import Prices


def pools(include_ephemeral: bool = False) -> QuerySet[Pool]:
    found = Pool.objects.filter(removed=False)
    return found if include_ephemeral else found.filter(ephemeral_owner="")


def calibration_of(pool: Pool) -> Calibration | None:
    """Return the newest calibration of the pool's kind, model and settings, or else the newest with any settings."""
    found = Calibration.objects.filter(pool=pool.name, kind=pool.kind, model=pool.model, status=DONE)
    try:
        of_settings = When(config_hash=config_hash(pool_spec(pool)), then=0)
    except LookupError:  # options are no longer known
        return found.first()
    return found.order_by(Case(of_settings, default=1), "-asked_at", "-pk").first()


def law_of_pool(pool: Pool) -> Law | None:
    """Return the law of the pool's engines: the measured law, or else that of their kind; None if unknown."""
    kind = KINDS.get(pool.kind)
    measured = calibration_of(pool) if kind is not None and not kind.simulated else None
    if measured is not None:
        return law_from(measured.constants)
    if kind is None:
        return None
    launch = Launch(f"{pool.name}-0", pool.model, "127.0.0.1", dict.fromkeys(kind.ports, 0), "python", 0)
    try:
        spec = build(kind.spec, pool.engine)
        model = twin_model_of(kind, spec)
        return None if model is None else model(spec, launch).engine.law
    except LookupError:  # options or a model are no longer known: routing continues
        return None


def store_pool() -> str:
    """Return the name of a pool of simulated stores; empty if there is none."""
    return pools().filter(kind=SIM_STORE.name).values_list("name", flat=True).first() or ""


def fleet_name() -> str:
    """Return the name in the applied document; empty before the first one."""
    return Fleet.objects.values_list("name", flat=True).first() or ""


def pool(name: str) -> Pool:
    """Return the pool. Raise Pool.DoesNotExist if it does not exist or is being removed."""
    return Pool.objects.get(name=name, removed=False)


def instances(pool: Pool | None = None) -> QuerySet[Instance]:
    """Return the instances of one pool, or of all pools except ephemeral ones."""
    found = Instance.objects.select_related("pool").order_by("pool__name", "ordinal")
    return found.filter(pool=pool) if pool is not None else found.filter(pool__ephemeral_owner="")


def instance(name: str) -> Instance:
    return Instance.objects.select_related("pool").get(name=name)


def pool_ready(name: str) -> tuple[int, int]:
    """Return (ready, desired), without instances that an operator drained or stopped."""
    found = Pool.objects.filter(name=name, removed=False).first()
    return (0, 0) if found is None else ready_of(found, found.instances.all(), timezone.now())


def ready_of(pool: Pool, instances: Iterable[Instance], now: datetime) -> tuple[int, int]:
    """Return the same for a pool whose instances are known."""
    kept = [one for one in instances if not one.retired]
    running = [one for one in kept if one.desired == DesiredState.RUNNING]
    desired = scale_of(pool, now).replicas - (len(kept) - len(running))
    # During a change with surge, more instances are ready than desired.
    return min(sum(one.state == State.READY for one in running), desired), desired


def last_log_lines(instance: Instance, n: int = 50) -> list[str]:
    """Return the last lines of a log on this host; empty for an instance on another node."""
    return logs.tail(logs.path_of(instance.name), n)


def events(instance_name: str, limit: int = 50) -> QuerySet[InstanceEvent]:
    return InstanceEvent.objects.filter(instance=instance_name)[:limit]


def node_events(node_name: str, limit: int = 50) -> QuerySet[InstanceEvent]:
    return InstanceEvent.objects.filter(node=node_name)[:limit]


def events_of_nodes(limit: int = 50) -> QuerySet[InstanceEvent]:
    """Return the events of all nodes, including forgotten ones."""
    return InstanceEvent.objects.exclude(node="")[:limit]


def pool_events(pool_name: str, limit: int = 50) -> QuerySet[InstanceEvent]:
    return InstanceEvent.objects.filter(pool=pool_name)[:limit]


def prices() -> Prices:
    """Return the prices of the fleet document."""
    header = Fleet.objects.first()
    given: Prices = build(Prices, header.prices if header else {})
    return given


def waits_for_group(instance: Instance) -> str:
    """Return why a ready instance gets no requests, which is the case if other instances of its group are not ready;
    empty if it gets requests.
    """
    group = _group_of(instance) if instance.state == State.READY else ()
    if not group:
        return ""
    ready = set(instance.pool.instances.filter(state=State.READY).values_list("ordinal", flat=True))
    missing = [f"{instance.pool.name}-{ordinal}" for ordinal in group if ordinal not in ready]
    return f"its group serves only whole, not ready: {', '.join(missing)}" if missing else ""


def group(instance: Instance) -> list[Instance]:
    """Return the instances that serve only together with this one, including itself; empty if it serves alone."""
    ordinals = _group_of(instance)
    return (
        list(instance.pool.instances.filter(retired="", ordinal__in=ordinals).order_by("ordinal")) if ordinals else []
    )


def _group_of(instance: Instance) -> tuple[int, ...]:
    """Return the ordinals of the instance's group; empty for a kind or options that are no longer known."""
    try:
        kind = KINDS[instance.pool.kind]
        return kind.group(build(kind.spec, instance.pool.engine), instance.ordinal)
    except LookupError:
        return ()


def gpus_of_nodes(names: Iterable[str]) -> dict[str, str]:
    """Return the GPU of each node; nodes whose GPUs differ or are unknown are left out."""
    placed = set(names) - {""}
    nodes = Node.objects.filter(name__in=placed) if placed else ()
    found = {node.name: {gpu.name for gpu in node.resources.gpus or ()} for node in nodes}
    return {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1}
