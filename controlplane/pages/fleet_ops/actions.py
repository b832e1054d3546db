"""An operator's actions on the fleet, with audit entries, for pages, API and command line."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from msgspec import to_builtins

from controlplane.common.as_seen import held
from controlplane.people.audit.services import SYSTEM, Actor, record
from controlplane.traffic.aliases import check as models_check
from controlplane.traffic.deliveries.going_live import joining
from controlplane.traffic.deliveries.going_live.joining import AskedPool, Join
from controlplane.traffic.deliveries.going_live.rules import said
from controlplane.traffic.policies import served, versions
from controlplane.traffic.policies.errors import RulesForbid
from controlplane.traffic.policies.models import Policy
from fleet import selectors, services
from fleet.calibration import services as calibrations
from fleet.calibration.selectors import last_asked
from fleet.control import forget, nodes, rollback
from fleet.control.publish import publish_fleet
from fleet.models import Calibration, Instance, Node, Pool, PoolVersion
from fleet.services import Applied, NotPossible
from fleet.snapshot import pool_spec
from fleet.spec import document as documents
from fleet.spec.fleet_spec import SERVE, FleetSpec, InvalidFleet, PoolSpec, config
from router.contract.values.fields import suggestion
from router.contract.values.problem import Problem

VERBS: dict[str, Callable[[str, str, str], Instance]] = {
    "drain": services.drain,
    "undrain": services.undrain,
    "restart": services.restart,
    "stop": services.stop,
    "start": services.start,
    "sleep": services.sleep,
    "wake": services.wake,
}
NODE_VERBS: dict[str, Callable[[str, str, str], Node]] = {
    "cordon": nodes.cordon,
    "uncordon": nodes.uncordon,
    "drain": nodes.drain,
}


def apply(
    document: Mapping[str, object] | str,
    actor: Actor,
    *,
    reason: str = "",
    dry_run: bool = False,
    prune: bool = False,
    expected: str | None = None,
    emergency: str = "",
) -> Applied:
    """Apply a document. Nothing is written in a dry run, or if this raises UnreadableDocument, InvalidFleet,
    FleetChanged or RulesForbid. `emergency` is an administrator's reason for bypassing the rules of policies."""
    read = documents.load(document) if isinstance(document, str) else document
    spec = services.read_fleet(read)
    _check_policies(spec)
    with transaction.atomic():
        services.hold_fleet()
        before, pools = services.export(), services.current_spec().pools
        found = _joins(pools, spec.pools)
        emergency = joining.check_joins(found, actor, emergency)
        applied = services.apply_fleet(read, actor.name, dry_run, prune, expected, reason)
        _check_models(spec, applied)
        if not dry_run and applied.drift:
            removed = {change.pool for change in applied.changes if change.kind == "remove"}
            joining.remember(_left_behind(pools, spec.pools, removed), timezone.now())
            joining.record_joins(found, actor, reason, emergency)
            record(actor, "fleet.applied", "fleet", reason, before, services.export())
    return applied


def _joins(before: Iterable[PoolSpec], after: Iterable[PoolSpec]) -> list[Join]:
    """Return the pools that would join a policy, except observed pools, whose requests bypass the routers."""
    serving = [pool for pool in after if pool.mode == SERVE]
    served_before = [AskedPool(pool.name, pool.model, pool.policy) for pool in before if pool.mode == SERVE]
    return joining.joins(served_before, joining.former_pools(timezone.now()), serving)


def _left_behind(before: Iterable[PoolSpec], after: Iterable[PoolSpec], removed: Container[str]) -> list[PoolSpec]:
    """Return pools that no longer serve their requests: removed, only observed, or given another model."""
    models = {pool.name: pool.model if pool.mode == SERVE else "" for pool in after}
    return [
        pool
        for pool in before
        if pool.mode == SERVE and (pool.name in removed or models.get(pool.name, pool.model) != pool.model)
    ]


def _check_policies(spec: FleetSpec) -> None:
    known = tuple(Policy.objects.values_list("name", flat=True))
    problems = [
        Problem(f"spec.pools[{index}].policy", pool.policy, f"no such policy{suggestion(pool.policy, known)}")
        for index, pool in enumerate(spec.pools)
        if known and pool.policy not in known
    ]
    problems += [
        Problem(f"spec.pools[{index}].policy", pool.policy, f"the policy {pool.policy} cannot serve it: {why}")
        for index, pool in enumerate(spec.pools)
        if (why := served.why_not_by(pool.policy, pool))
    ]
    if problems:
        raise InvalidFleet(problems)


def _check_models(spec: FleetSpec, applied: Applied) -> None:
    """Check that a pool that the document Models names continues to serve."""
    changed = {change.pool: change for change in applied.changes}
    gone = {name: "spec.pools" for name, change in changed.items() if change.kind == "remove"}
    for at, pool in enumerate(spec.pools):
        if pool.mode != SERVE and pool.name in changed and any(one.path == "mode" for one in changed[pool.name].fields):
            gone[pool.name] = f"spec.pools[{at}].mode"
    if problems := models_check.served_by(gone):
        raise InvalidFleet(problems)


def act(
    verb: str,
    instance_name: str,
    actor: Actor,
    reason: str,
    *,
    if_match: str | None = None,
    group: bool = False,
    **more: int,
) -> tuple[Instance, ...]:
    """Act on an instance. Raise Http404, NotPossible or ChangedMeanwhile. With `group`, act on all instances that
    serve only together with it; `more` is the level of a sleep."""
    with _held_instance(instance_name, if_match) as asked:
        whole = selectors.group(asked) if group else []
        if not group:
            services.check_group(asked, verb)
        return tuple(_act(verb, one, actor, reason, **more) for one in whole or [asked])


def _act(verb: str, asked: Instance, actor: Actor, reason: str, **more: int) -> Instance:
    before = _condition(asked)
    instance = VERBS[verb](asked.name, actor.name, reason, **more)
    record(actor, f"instance.{verb}", asked.name, reason, before, _condition(instance))
    return instance


def calibrate(
    instance_name: str,
    actor: Actor,
    reason: str,
    seconds: float = calibrations.SECONDS,
    *,
    anyway: bool = False,
    source: str = calibrations.SWEEP,
) -> Calibration:
    """Return a queued calibration that has not been sent yet. Raise Instance.DoesNotExist, or NotPossible, which
    says what to do instead."""
    with transaction.atomic():
        row = calibrations.ask_for(instance_name, actor.name, seconds, anyway=anyway, source=source)
        record(actor, "instance.calibrate", instance_name, reason, None, {"seconds": seconds, "source": source})
    return row


def cancel_calibration(instance_name: str, actor: Actor, *, if_match: str | None = None) -> Calibration:
    """Cancel the latest calibration of the instance. NotPossible if none is queued or running; raises
    ChangedMeanwhile."""
    row = last_asked(instance_name)
    nothing = NotPossible(f"{instance_name} is not being calibrated: there is nothing to cancel")
    if row is None:
        raise nothing
    with held(Calibration.objects.filter(pk=row.pk), f"calibration of {instance_name}", if_match):
        if not calibrations.cancel(row, actor.name):
            raise nothing
        record(actor, "instance.cancel_calibration", instance_name)
    return row


def scale(pool_name: str, replicas: int, actor: Actor, reason: str, *, if_match: str | None = None) -> Pool:
    """Scale a pool. Raise Http404, NotPossible or ChangedMeanwhile."""
    with _as_seen(pool_name, if_match) as held_pool:
        before = {"replicas": held_pool.replicas}
        pool = services.scale_pool(pool_name, replicas, actor.name, reason)
        record(actor, "pool.scale", pool_name, reason, before, {"replicas": pool.replicas})
    return pool


def set_mode(pool_name: str, mode: str, actor: Actor, reason: str, *, if_match: str | None = None) -> Pool:
    """Observe the pool or serve it, as a document with this mode would. Raise Http404, InvalidFleet, RulesForbid or
    ChangedMeanwhile; NotPossible if it is in that mode already."""
    with _as_seen(pool_name, if_match) as held_pool:
        if held_pool.mode == mode:
            raise NotPossible(f"{pool_name} is in the mode {mode} already")
        whole = services.export()
        for pool in whole["spec"]["pools"]:
            if pool["name"] == pool_name:
                pool["mode"] = mode
        apply(whole, actor, reason=reason)
    publish_fleet(pool_name)
    return selectors.pool(pool_name)


def roll_back(
    pool_name: str, actor: Actor, reason: str, number: int | None = None, *, if_match: str | None = None
) -> PoolVersion:
    """Roll a pool back. Raise Http404, NotPossible, RulesForbid or ChangedMeanwhile. `number` is the version, by
    default the latest other version that worked."""
    with _as_seen(pool_name, if_match) as pool:
        versions.lock(pool.policy)
        pools, before = services.current_spec().pools, to_builtins(config(pool_spec(pool)))
        made = rollback.rollback_pool(pool_name, actor.name, reason, number)
        if why := served.why_not_now(selectors.pool(pool_name)):
            raise NotPossible(f"{pool_name}: its policy cannot serve that configuration: {why}")
        after = [pool_spec(selectors.pool(pool_name))]  # an earlier version may have another model
        found = [replace(join, returns=made.proven_at is not None) for join in _joins(pools, after)]
        joining.check_joins(found, actor, "")
        joining.remember(_left_behind(pools, after, ()), timezone.now())
        joining.record_joins(found, actor, reason, "")
        record(actor, "pool.rollback", pool_name, reason, before, made.config)
    return made


def roll_back_by_itself(pool_name: str, reason: str) -> PoolVersion:
    """Roll a pool back after a failed change. NotPossible names the rule that forbids it."""
    try:
        return roll_back(pool_name, SYSTEM, reason)
    except RulesForbid as error:
        raise NotPossible("; ".join(map(said, error.refusals))) from None


def resume(pool_name: str, actor: Actor, reason: str, *, if_match: str | None = None) -> Pool:
    """Resume a halted change. Raise Http404, ChangedMeanwhile, or NotPossible if no change is halted."""
    with _as_seen(pool_name, if_match) as held_pool:
        before = {"halted": held_pool.halted}
        pool = rollback.resume_pool(pool_name, actor.name, reason)
        record(actor, "pool.resume", pool_name, reason, before, {"halted": ""})
    return pool


@contextmanager
def _as_seen(pool_name: str, if_match: str | None) -> Iterator[Pool]:
    """Yield the pool in a transaction during which nobody else can change it or another part of the fleet."""
    with transaction.atomic():
        services.hold_fleet()
        with held(Pool.objects.filter(name=pool_name, removed=False), f"pool {pool_name}", if_match) as pool:
            yield pool


@contextmanager
def _held_instance(name: str, if_match: str | None) -> Iterator[Instance]:
    """Yield the instance in a transaction during which nobody else can act on its pool's instances, because actions on
    a group concern all of its instances.
    """
    with transaction.atomic():
        Pool.objects.filter(instances__name=name).update(name=F("name"))
        with held(Instance.objects.filter(name=name), f"instance {name}", if_match) as instance:
            yield instance


def act_on_node(verb: str, name: str, actor: Actor, reason: str, *, if_match: str | None = None) -> Node:
    """Act on a node. Raise Http404 or ChangedMeanwhile; NotPossible if it would drain only part of a group."""
    with held(Node.objects.filter(name=name), f"node {name}", if_match) as held_node:
        before = _openness(held_node)
        if verb == "drain":
            services.check_node_groups(name)
        node = NODE_VERBS[verb](name, actor.name, reason)
        record(actor, f"node.{verb}", name, reason, before, _openness(node))
    return node


def forget_node(name: str, actor: Actor, reason: str, *, if_match: str | None = None) -> None:
    """Forget a node. Raise Http404 or ChangedMeanwhile; NotPossible while it reports or holds instances."""
    with held(Node.objects.filter(name=name), f"node {name}", if_match):
        node = forget.forget(name, actor.name, reason)
        seen = node.last_seen and node.last_seen.isoformat()
        before = {"hostname": node.hostname, "address": node.address, "labels": node.labels, "last_seen": seen}
        record(actor, "node.forget", name, reason, before, None)


def _openness(node: Node) -> dict[str, object]:
    return {"cordoned": node.cordoned, "draining": node.draining}


def _condition(instance: Instance) -> dict[str, object]:
    return {"desired": instance.desired, "state": instance.state, "epoch": instance.epoch}
