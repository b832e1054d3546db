"""Changes of the desired fleet. They only write rows; the reconciler (control/reconciler.py) acts on them.

FleetError
├── NotPossible      the instance, pool or node does not allow it
└── FleetChanged     another document was applied in the meantime
The document itself raises InvalidFleet (spec/fleet_spec.py) and UnreadableDocument (spec/document.py).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from fleet import events, selectors
from fleet.control import nodes
from fleet.control.publish import publish_fleet
from fleet.events import move
from fleet.kinds import KINDS
from fleet.kinds.kind import SPLIT, check_engine, split_group
from fleet.kinds.options.option import build
from fleet.models import DesiredState, Fleet, Instance, Pool, PoolVersion, State
from fleet.plan.desired import AT_REST
from fleet.snapshot import pool_spec as pool_spec
from fleet.spec import allow_lists, masking, needs, versions
from fleet.spec import document as documents
from fleet.spec.changes import FleetChange, changes, describe_change
from fleet.spec.fleet_spec import (
    FleetSpec,
    InvalidFleet,
    PoolSpec,
    dump_fleet,
    parse_fleet,
    placement,
)
from fleet.spec.sections import MAX_REPLICAS
from router.contract.pools import EPHEMERAL_PREFIX, is_ephemeral

DEFAULT_NAME = "fleet"
LOCAL = "local"


# Desired state by verb; a restart keeps it.
_LEADS_TO: Mapping[str, str] = {
    "drain": DesiredState.DRAINED,
    "undrain": DesiredState.RUNNING,
    "start": DesiredState.RUNNING,
    "stop": DesiredState.STOPPED,
    "sleep": DesiredState.ASLEEP,
    "wake": DesiredState.RUNNING,
}


_AT_ONCE: Mapping[str, Any] = {"failures": 0, "next_start_at": None}  # updates that skip the back-off


class FleetError(Exception):
    pass


class NotPossible(FleetError):
    pass


class FleetChanged(FleetError):
    pass


@dataclass(frozen=True, slots=True)
class Applied:
    spec: FleetSpec
    changes: tuple[FleetChange, ...]
    dry_run: bool
    warnings: tuple[str, ...] = ()  # problems of settings that are accepted, but will not work yet

    @property
    def drift(self) -> bool:
        """Return whether the fleet differs (or differed) from the document."""
        return any(change.kind != "unlisted" for change in self.changes)


def read_fleet(document: object) -> FleetSpec:
    """Parse a document that may be applied here. Raise InvalidFleet."""
    spec = parse_fleet(document)
    allow_lists.check_fleet(spec)
    return spec


def hold_fleet() -> None:
    """Keep other writers from changing the desired fleet until the transaction ends."""
    Fleet.objects.filter(pk=1).update(name=F("name"))


def apply_fleet(
    document: Mapping[str, object] | str,
    actor: str,
    dry_run: bool = False,
    prune: bool = False,
    expected: str | None = None,
    reason: str = "",
) -> Applied:
    """Make the document the desired state. Raise FleetChanged unless the fleet still has the digest `expected`."""
    spec = read_fleet(documents.load(document) if isinstance(document, str) else document)
    with transaction.atomic():
        hold_fleet()
        if expected is not None and expected != digest():
            raise FleetChanged("the fleet has changed since it was read; read it again and apply to that")
        before = current_spec()
        wrong = needs.problems(spec.pools, () if prune else [pool.name for pool in before.pools])
        if wrong:
            raise InvalidFleet(wrong)
        found = changes(before, spec, prune)
        if not dry_run:
            _write(spec, found, actor, reason)
    return Applied(spec, found, dry_run, _warnings(spec))


def _warnings(spec: FleetSpec) -> tuple[str, ...]:
    known = {*nodes.known(), LOCAL}  # the worker of LOCAL may be about to start
    return tuple(
        f"pool {pool.name}: node {name} is not known yet; its instances start once it reports "
        f"(manage.py node --name {name})"
        for pool in spec.pools
        for name in placement(pool).nodes
        if name not in known
    )


def _write(spec: FleetSpec, found: tuple[FleetChange, ...], actor: str, reason: str) -> None:
    Fleet.objects.update_or_create(
        pk=1,
        defaults={"name": spec.name, "prices": dict(spec.prices), "applied_at": timezone.now(), "applied_by": actor},
    )
    desired = {pool.name: pool for pool in spec.pools}
    for change in found:
        if change.kind in ("unlisted", "prices"):
            continue
        if change.kind == "remove":
            Pool.objects.filter(name=change.pool).update(removed=True)
            made = None
        else:
            made = _save_pool(desired[change.pool], actor, reason)
        text = f"version {made.number}: {describe_change(change)}" if made is not None else describe_change(change)
        number = 0 if made is None else made.number
        events.record_pool(Pool.objects.get(name=change.pool), change.kind, text, actor, reason, version=number)


def _save_pool(spec: PoolSpec, actor: str, reason: str) -> PoolVersion | None:
    """Save the pool and return its new version; None if the configuration is unchanged."""
    old = Pool.objects.filter(name=spec.name).first()
    before = pool_spec(old) if old is not None and old.kind in KINDS else None
    plain = {name: getattr(spec, name) for name in ("model", "policy", "kind", "replicas", "node", "mode")}
    sections = ("engine", "update", "placement", "schedule", "autoscale", "slo", "access")
    nested = {name: dict(getattr(spec, name)) for name in sections}
    values = {**plain, **nested, "removed": False, "ephemeral_owner": ""}
    pool, _ = Pool.objects.update_or_create(name=spec.name, defaults=values)
    made = versions.record_version(pool, before, spec, actor, reason)
    if made is not None and pool.halted:
        # A new configuration starts a new change, which is not halted.
        Pool.objects.filter(pk=pool.pk).update(halted="")
    return made


def current_spec() -> FleetSpec:
    """Return the fleet as last applied, without ephemeral pools."""
    header = Fleet.objects.first()
    pools = tuple(pool_spec(pool) for pool in selectors.pools())
    return FleetSpec(header.name, pools, header.prices) if header else FleetSpec(DEFAULT_NAME, pools)


def export(secrets: bool = True) -> dict[str, Any]:
    """Return the document of the current fleet; applying it changes nothing. Without `secrets`, return the form that
    viewers may see."""
    document = dump_fleet(current_spec())
    return document if secrets else masking.shown(document)


def export_yaml(secrets: bool = True) -> str:
    return documents.dump(export(secrets))


def digest() -> str:
    return hashlib.sha256(export_yaml().encode()).hexdigest()


def drain(instance_name: str, actor: str, reason: str = "") -> Instance:
    """Stop new requests to the instance; running ones finish, and the process stays."""
    instance = _ask(selectors.instance(instance_name), "drain", actor, reason, stopped="start it first")
    if instance.state == State.READY:
        # It leaves routing now, not at the next reconcile step.
        move(instance, State.DRAINING, _with_reason(f"drained by {actor}", reason), actor=actor)
        transaction.on_commit(partial(publish_fleet, instance.pool.name))
    return instance


def undrain(instance_name: str, actor: str, reason: str = "") -> Instance:
    """Let the instance take requests again."""
    return _ask(selectors.instance(instance_name), "undrain", actor, reason, stopped="start it instead")


def restart(instance_name: str, actor: str, reason: str = "") -> Instance:
    """Drain, stop and start the instance, without waiting for a back-off."""
    asked = {"restart_asked": _with_reason(f"restart requested by {actor}", reason)[:300], **_AT_ONCE}
    return _ask(selectors.instance(instance_name), "restart", actor, reason, stopped="start it instead", **asked)


def stop(instance_name: str, actor: str, reason: str = "") -> Instance:
    """Drain and stop the instance until it is started again."""
    return _ask(selectors.instance(instance_name), "stop", actor, reason)


def start(instance_name: str, actor: str, reason: str = "") -> Instance:
    """Start the instance, without waiting for a back-off."""
    return _ask(selectors.instance(instance_name), "start", actor, reason, **_AT_ONCE)


def sleep(instance_name: str, actor: str, reason: str = "", level: int = 1) -> Instance:
    """Drain the instance, then free the GPU's memory; the process stays. Level 1 keeps the weights in host memory."""
    instance = selectors.instance(instance_name)
    if not can_sleep(instance):
        raise NotPossible(f"{instance_name} cannot sleep: its kind or its options do not support it")
    return _ask(instance, "sleep", actor, reason, stopped="start it first", sleep_level=level)


def wake(instance_name: str, actor: str, reason: str = "") -> Instance:
    """Reload the GPU's memory, then let the instance take requests."""
    instance = selectors.instance(instance_name)
    if instance.desired != DesiredState.ASLEEP:
        raise NotPossible(f"{instance_name} is not asleep")
    return _ask(instance, "wake", actor, reason)


def can_sleep(instance: Instance) -> bool:
    """Return whether the instance's kind supports sleep with the current options."""
    given = instance.started_from
    return given.known_kind is not None and given.known_kind.can_sleep(given.options())


def check_group(instance: Instance, verb: str) -> None:
    """Raise NotPossible for an instance whose group would not change along with it: a group serves only as a whole."""
    others = [one for one in selectors.group(instance) if one.pk != instance.pk]
    if any(one.desired != _LEADS_TO.get(verb) for one in others):
        names = ", ".join(one.name for one in others)
        raise NotPossible(
            f"{instance.name} serves only together with the others of its group, {names}: "
            f'{verb} the whole group, over REST with "group": true'
        )


def check_node_groups(node: str) -> None:
    """Raise NotPossible if draining the node would split a group: its remaining instances would serve nothing."""
    for instance in Instance.objects.filter(node=node).exclude(state__in=AT_REST).order_by("name"):
        others = [one for one in selectors.group(instance) if one.node != node and one.state not in AT_REST]
        if others:
            where = ", ".join(f"{one.name} on {one.node}" for one in others)
            raise NotPossible(
                f"{instance.name} serves only together with the others of its group, of which {where}: "
                "stop the whole group, drain the node, then start the group, which is placed on other nodes"
            )


@transaction.atomic
def scale_pool(pool_name: str, replicas: int, actor: str, reason: str = "") -> Pool:
    """Set the replicas; an autoscaler continues from there. Raise Pool.DoesNotExist; NotPossible beyond the limits."""
    hold_fleet()
    pool = selectors.pool(pool_name)
    kind = KINDS[pool.kind]
    spec = build(kind.spec, pool.engine)
    if kind.has_source(spec):
        raise NotPossible(f"{pool_name}: its source lists the instances: start or stop engines there")
    most = min(MAX_REPLICAS, kind.max_replicas(spec) or MAX_REPLICAS)
    if not 0 <= replicas <= most:
        raise NotPossible(f"{pool_name}: replicas: {replicas} is out of range; allowed: 0 to {most:,}")
    if allowed := split_group(kind, spec, replicas):
        raise NotPossible(f"{pool_name}: replicas: {replicas} {SPLIT}; allowed: {allowed}")
    before, pool.replicas = pool.replicas, replicas
    pool.scaled = None if pool.scaled is None else replicas
    pool.save(update_fields=["replicas", "scaled"])
    events.record_pool(pool, "scale", f"scaled from {before} to {replicas} by {actor}", actor, reason)
    return pool


def _ask(instance: Instance, verb: str, actor: str, reason: str, *, stopped: str = "", **fields: Any) -> Instance:
    """Carry out an order to an instance. `stopped` says what to do instead if the instance is stopped on request; empty
    if that does not matter.
    """
    if stopped and instance.desired == DesiredState.STOPPED:
        raise NotPossible(f"{instance.name} is stopped on request; {stopped}")
    fields["desired"] = _LEADS_TO.get(verb, instance.desired)
    Instance.objects.filter(pk=instance.pk).update(**fields)
    for name, value in fields.items():
        setattr(instance, name, value)
    events.record(instance, verb, f"{verb} asked by {actor}", actor, reason)
    return instance


def _with_reason(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text


def create_ephemeral_pool(
    name: str,
    like: Pool,
    *,
    replicas: int | None = None,
    engine_overrides: Mapping[str, object] | None = None,
    owner: str,
) -> Pool:
    """Create an experiment's pool: a copy of `like` with other options. Raise InvalidFleet if the kind rejects them."""
    if not is_ephemeral(name):
        raise NotPossible(f"{name}: the name of an ephemeral pool must begin with {EPHEMERAL_PREFIX}")
    if Pool.objects.filter(name=name).exists():
        raise NotPossible(f"{name}: the pool exists already")
    engine = {**like.engine, **(engine_overrides or {})}
    kind = KINDS[like.kind]
    problems = check_engine(kind, engine, "engine", like.model)
    problems = problems or allow_lists.refusals(allow_lists.configured(), kind, like.model, engine, "pool")
    if problems:
        raise InvalidFleet(problems)
    return Pool.objects.create(
        name=name,
        model=like.model,
        policy=like.policy,
        kind=like.kind,
        node=like.node,
        placement=like.placement,
        replicas=like.replicas if replicas is None else replicas,
        engine=engine,
        ephemeral_owner=owner,
    )


def delete_ephemeral_pool(name: str) -> bool:
    """Mark the pool for removal; return False if it does not exist."""
    return bool(Pool.objects.filter(name=name).exclude(ephemeral_owner="").update(removed=True))
