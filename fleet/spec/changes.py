"""Changes that applying a document makes, and their effects as text. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fleet.counted import counted
from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.spec.fleet_spec import OBSERVE, FleetSpec, PoolSpec, config_hash
from fleet.spec.masking import change_shown
from fleet.spec.sections import update_of

ChangeKind = Literal["create", "update", "remove", "unlisted", "prices"]
_FIELDS = ("model", "policy", "kind", "replicas", "node", "mode")
_SECTIONS = ("engine", "update", "placement", "schedule", "autoscale", "slo", "access")


@dataclass(frozen=True, slots=True)
class FieldChange:
    path: str  # "replicas", "engine.seed"
    old: Any  # None: not given
    new: Any

    @property
    def text(self) -> tuple[str, str]:
        return value_text(self.old), value_text(self.new)


@dataclass(frozen=True, slots=True)
class FleetChange:
    kind: ChangeKind  # "unlisted": the pool runs, is not in the document, and stays unless pruned
    pool: str  # empty for prices
    fields: tuple[FieldChange, ...]
    effect: str


def changes(old: FleetSpec, new: FleetSpec, prune: bool) -> tuple[FleetChange, ...]:
    """Return the changes by pool name, without unchanged pools."""
    before = {pool.name: pool for pool in old.pools}
    after = {pool.name: pool for pool in new.pools}
    found = [_change(before.get(name), after.get(name), prune) for name in sorted(before | after)]
    prices = tuple(change for change in _section("prices", old.prices, new.prices) if change.old != change.new)
    priced = [FleetChange("prices", "", prices, "costs are shown by these prices")] if prices else []
    return (*priced, *(change for change in found if change is not None))


def describe_change(change: FleetChange) -> str:
    """Describe a change: `replicas 2 → 4; starts 2 instances`"""
    fields = [f"{field.path} {' → '.join(field.text)}" for field in change.fields]
    return "; ".join([*([", ".join(fields)] if fields else []), change.effect])


def value_text(value: Any) -> str:
    """Return a value as a person writes it in a document."""
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False)
    return "not given" if value in (None, "") else f"{value}"


def _change(old: PoolSpec | None, new: PoolSpec | None, prune: bool) -> FleetChange | None:
    if new is None:
        assert old is not None  # noqa: S101 - the name came from one of the two
        if prune:
            return FleetChange("remove", old.name, (), f"drains and stops {counted(old.replicas, 'instance')}")
        return FleetChange("unlisted", old.name, (), "stays: it is not in the document, and pruning is off")
    if old is None:
        return FleetChange("create", new.name, (), _beginning(new))
    fields = field_changes(old, new)
    return FleetChange("update", new.name, fields, "; ".join(_effects(old, new))) if fields else None


def _beginning(pool: PoolSpec) -> str:
    kind = KINDS[pool.kind]
    if kind.launched:
        return f"starts {counted(pool.replicas, 'instance')}"
    verb = "shows" if pool.mode == OBSERVE else "serves with"
    if kind.has_source(build(kind.spec, pool.engine)):
        return f"{verb} the engines that its source lists"
    return f"{verb} {counted(pool.replicas, 'engine')} started elsewhere"


def field_changes(old: PoolSpec, new: PoolSpec) -> tuple[FieldChange, ...]:
    plain = [FieldChange(name, getattr(old, name), getattr(new, name)) for name in _FIELDS]
    nested = [change for name in _SECTIONS for change in _section(name, getattr(old, name), getattr(new, name))]
    found = (change for change in plain + nested if change.old != change.new)
    return tuple(_shown(change) for change in found)


def _shown(change: FieldChange) -> FieldChange:
    old, new = change_shown(change.path, change.old, change.new)
    return replace(change, old=old, new=new)


def _section(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[FieldChange]:
    return [FieldChange(f"{name}.{key}", old.get(key), new.get(key)) for key in sorted({*old, *new})]


def _effects(old: PoolSpec, new: PoolSpec) -> list[str]:
    found = []
    kept = min(old.replicas, new.replicas)
    if config_hash(old) != config_hash(new) and kept:
        found.append(_replaces(new, kept))
    if (old.node, old.placement) != (new.node, new.placement) and kept:
        found.append("moves instances off nodes that no longer fit")
    if new.replicas > old.replicas:
        found.append(f"starts {counted(new.replicas - old.replicas, 'instance')}")
    if new.replicas < old.replicas:
        found.append(f"drains and stops {counted(old.replicas - new.replicas, 'instance')}")
    if new.policy != old.policy:
        found.append(f"routers switch to the policy {new.policy}")
    if new.mode != old.mode:
        found.append("routers send it no more requests" if new.mode == OBSERVE else "routers send it requests")
    return found or ["changes no instance"]


def _replaces(pool: PoolSpec, count: int) -> str:
    update = update_of(pool.update)
    if update.strategy == "surge":
        return (
            f"replaces {counted(count, 'instance')}: starts up to {update.surge(pool.replicas)} new ones, "
            "then drains old ones"
        )
    most = update.unavailable(pool.replicas)
    return f"drains and restarts {counted(count, 'instance')}, at most {most} at a time"
