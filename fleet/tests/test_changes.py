"""Describe what applying a document would change."""

import dataclasses
from typing import Any

from fleet.spec.changes import FieldChange, FleetChange, changes, describe_change, field_changes
from fleet.spec.fleet_spec import FleetSpec, PoolSpec

POOL = PoolSpec("demo", "llama", "sim", 8, "default", "local", {"seed": 1})


def fleet(*pools: PoolSpec) -> FleetSpec:
    return FleetSpec("f", pools)


def update(**fields: Any) -> FleetChange:
    (change,) = changes(fleet(POOL), fleet(dataclasses.replace(POOL, **fields)), prune=False)
    return change


def test_the_same_fleet_changes_nothing() -> None:
    assert changes(fleet(POOL), fleet(POOL), prune=True) == ()


def test_a_new_pool_starts_its_instances() -> None:
    assert changes(fleet(), fleet(POOL), prune=False) == (FleetChange("create", "demo", (), "starts 8 instances"),)


def test_a_pool_that_is_not_in_the_document_stays_unless_pruned() -> None:
    (kept,) = changes(fleet(POOL), fleet(), prune=False)
    (pruned,) = changes(fleet(POOL), fleet(), prune=True)
    assert (kept.kind, pruned.kind) == ("unlisted", "remove")
    assert pruned.effect == "drains and stops 8 instances"


def test_a_change_of_replicas_is_described() -> None:
    assert update(replicas=9).effect == "starts 1 instance"
    assert update(replicas=5).effect == "drains and stops 3 instances"
    assert update(replicas=5).fields == (FieldChange("replicas", 8, 5),)


def test_an_option_restarts_the_pool_gradually() -> None:
    change = update(engine={"seed": 2, "kv_blocks": 100})
    assert change.effect == "drains and restarts 8 instances, at most 2 at a time"
    assert change.fields == (FieldChange("engine.kv_blocks", None, 100), FieldChange("engine.seed", 1, 2))


def test_writing_out_a_default_restarts_no_instance() -> None:
    assert update(engine={"seed": 1, "block_size": 16}).effect == "changes no instance"


def test_a_change_of_policy_restarts_no_instance() -> None:
    assert update(policy="night").effect == "routers switch to the policy night"


def test_growing_a_pool_from_zero_restarts_no_instance() -> None:
    old, new = dataclasses.replace(POOL, replicas=0), dataclasses.replace(POOL, engine={"seed": 3})
    (change,) = changes(fleet(old), fleet(new), prune=False)
    assert change.effect == "starts 8 instances"


def test_a_changed_secret_is_listed_but_not_shown() -> None:
    old, new = (dataclasses.replace(POOL, engine={"environment": {"HF_TOKEN": value}}) for value in ("a", "b"))
    (change,) = field_changes(old, new)
    assert (change.path, change.old, change.new) == (
        "engine.environment",
        {"HF_TOKEN": "(hidden)"},
        {"HF_TOKEN": "(hidden, changed)"},
    )


def test_a_change_is_described_in_one_line() -> None:
    assert describe_change(update(replicas=9, engine={"seed": 2})) == (
        "replicas 8 → 9, engine.seed 1 → 2; drains and restarts 8 instances, at most 2 at a time; starts 1 instance"
    )
    assert describe_change(update(engine={})).startswith("engine.seed 1 → not given; ")
    moved = update(node="", placement={"nodes": ["a", "ß"], "spread": True})
    assert describe_change(moved).startswith(
        'node local → not given, placement.nodes not given → ["a", "ß"], placement.spread not given → true; '
    )
