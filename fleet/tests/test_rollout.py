"""Roll a change of configuration out: never too many instances out, halted when the new one fails, and undone."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.plan.desired import DesiredPool
from fleet.plan.reconcile import plan
from fleet.spec.sections import Update
from fleet.tests.model import MARS, NOW, Model, a_pool, an_instance, pool_of


def changing(replicas: int, update: Update, **fields: Any) -> DesiredPool:
    return a_pool(replicas=replicas, update=update, proven=False, stable_hash="old", **fields)


def kinds(pool: DesiredPool, instances: list) -> list[tuple[str, str]]:
    return [(one.kind, one.instance) for one in plan([pool], instances, NOW, [MARS])]


@pytest.mark.parametrize(
    ("given_update", "replicas", "surge", "unavailable"),
    [
        ({}, 1, 0, 1),
        ({}, 3, 0, 1),
        ({}, 8, 0, 2),
        ({}, 100, 0, 25),
        ({"max_unavailable": 5}, 8, 0, 5),
        ({"strategy": "surge"}, 8, 2, 0),
        ({"strategy": "surge"}, 1, 1, 0),
        ({"strategy": "surge", "max_surge": 3, "max_unavailable": 1}, 8, 3, 1),
    ],
)
def test_the_limits_of_unavailable_and_surge_instances(
    given_update: dict, replicas: int, surge: int, unavailable: int
) -> None:
    update = Update(**given_update)
    assert (update.surge(replicas), update.unavailable(replicas)) == (surge, unavailable)


@given(st.integers(1, 12), st.integers(1, 4))
def test_in_place_never_exceeds_max_unavailable(replicas: int, unavailable: int) -> None:
    model = Model(changing(replicas, Update(max_unavailable=unavailable)), pool_of(replicas, config_hash="old"))
    for _ in range(12 * replicas + 12):
        model.step()
        assert model.ready() >= replicas - unavailable
        assert len(model.rows) == replicas
    assert model.pool.proven
    assert {row.config_hash for row in model.rows.values()} == {"new"}


@given(st.integers(1, 3), st.integers(2, 4), st.integers(1, 8), st.integers(0, 2))
def test_instances_that_serve_together_change_together(groups: int, size: int, unavailable: int, more: int) -> None:
    """Besides the groups, `more` instances serve alone. As many groups are out as fit, but at least one."""
    replicas = groups * size + more
    of = {at: tuple(range(at - at % size, at - at % size + size)) for at in range(groups * size)}
    pool = changing(replicas, Update(max_unavailable=unavailable), ordinals=frozenset(range(replicas)), groups=of)
    model = Model(pool, pool_of(replicas, config_hash="old"))
    for _ in range(12 * replicas + 12):
        model.step()
        ready = {row.ordinal for row in model.rows.values() if row.state == "ready"}
        assert len(ready) >= replicas - max(unavailable, size) - size + 1
        old = {row.ordinal for row in model.rows.values() if row.state == "ready" and row.config_hash == "old"}
        assert all(old.issuperset(group) for group in of.values() if old.intersection(group))
    assert model.pool.proven
    assert {row.config_hash for row in model.rows.values()} == {"new"}


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2))
def test_with_surge_new_instances_are_ready_before_old_ones_leave(replicas: int, surge: int, unavailable: int) -> None:
    update = Update("surge", surge, unavailable)
    model = Model(changing(replicas, update), pool_of(replicas, config_hash="old"))
    for _ in range(16 * replicas + 16):
        model.step()
        assert model.ready() >= replicas - unavailable
        assert sum(not row.retired for row in model.rows.values()) <= replicas + surge
    assert model.pool.proven
    assert [row.config_hash for row in model.rows.values()] == ["new"] * replicas
    assert model.ready() == replicas
    assert model.step() == ()


@given(st.integers(1, 8), st.sampled_from([Update(), Update("surge", 2, 0), Update("surge", 1, 1)]))
def test_a_configuration_that_does_not_start_halts_the_change_and_the_old_one_serves(
    replicas: int, update: Update
) -> None:
    model = Model(changing(replicas, update), pool_of(replicas, config_hash="old"), broken=frozenset({"new"}))
    for _ in range(80):
        model.step()
        assert model.ready() >= replicas - update.unavailable(replicas)
    assert "failed with the new configuration" in model.pool.halted
    assert [(row.config_hash, row.state) for row in model.rows.values()] == [("old", "ready")] * replicas
    assert model.step() == ()
    assert model.starts <= 2 * (update.surge(replicas) + update.unavailable(replicas))


def test_while_halted_a_dead_instance_restarts_with_the_last_good_configuration() -> None:
    pool = changing(3, Update(), halted="p-0 failed")
    fleet = pool_of(3, config_hash="old")
    fleet[1] = dataclasses.replace(fleet[1], state="failed", next_start_at=NOW - 1)
    fleet[2] = an_instance(name="p-2", ordinal=2, state="stopped", config_hash="")
    actions = plan([pool], fleet, NOW, [MARS])
    assert [(one.kind, one.instance, one.config_hash) for one in actions] == [
        ("start", "p-1", "old"),
        ("start", "p-2", "old"),
    ]


def test_a_resumed_change_is_tried_again() -> None:
    pool = changing(2, Update(max_unavailable=1))
    assert kinds(pool, pool_of(2, config_hash="old")) == [("drain", "p-0")]


def test_with_automatic_rollback_the_pool_returns_to_the_old_configuration() -> None:
    update = Update(on_failure="rollback")
    model = Model(changing(4, update), pool_of(4, config_hash="old"), broken=frozenset({"new"}))
    done = [action.kind for _ in range(60) for action in model.step()]
    assert "rollback" in done
    assert "halt" not in done
    assert [(row.config_hash, row.state) for row in model.rows.values()] == [("old", "ready")] * 4


def test_one_failure_of_a_ready_instance_does_not_halt_a_change_but_two_do() -> None:
    pool, fleet = changing(4, Update()), pool_of(4, config_hash="old")
    fleet[0] = an_instance(state="failed", failures=1, was_ready=True, next_start_at=NOW + 9)
    assert kinds(pool, fleet) == []
    fleet[0] = dataclasses.replace(fleet[0], failures=2)
    assert kinds(pool, fleet) == [("halt", "")]


@pytest.mark.parametrize("fields", [{"proven": True}, {"stable_hash": ""}, {"halted": "before"}, {"removed": True}])
def test_failures_without_a_change_in_progress_halt_nothing(fields: dict) -> None:
    fleet = [an_instance(state="failed", failures=3, was_ready=False, next_start_at=NOW + 9)]
    assert "halt" not in dict(kinds(dataclasses.replace(changing(1, Update()), **fields), fleet))


def test_a_change_does_not_begin_while_a_pool_that_it_needs_is_unreachable() -> None:
    for update in (Update(), Update("surge", 1, 0)):
        assert kinds(changing(2, update, needs=("store",)), pool_of(2, config_hash="old")) == []


def test_scaling_down_takes_unready_instances_first_and_then_the_idlest() -> None:
    fleet = [dataclasses.replace(one, load=load) for one, load in zip(pool_of(5), (4, 0, 2, 1, 9), strict=True)]
    fleet[4] = dataclasses.replace(fleet[4], state="loading")
    assert kinds(a_pool(replicas=2), fleet) == [("retire", "p-4"), ("retire", "p-1"), ("retire", "p-3")]


def test_of_equal_instances_the_newest_leaves_first() -> None:
    assert kinds(a_pool(replicas=2), pool_of(3)) == [("retire", "p-2")]


def test_instances_still_draining_are_kept_when_the_pool_grows_again() -> None:
    fleet = pool_of(2)
    fleet[1] = dataclasses.replace(fleet[1], state="draining", retired="scaled down to 1")
    assert ("keep", "p-1") in kinds(a_pool(replicas=2), fleet)


def test_the_reason_for_the_number_of_instances_is_shown() -> None:
    (action,) = plan([a_pool(replicas=1, because="scheduled daily")], [], NOW, [MARS])
    assert action.reason == "desired replicas: 1 (scheduled daily)"


@given(st.integers(1, 8), st.integers(0, 8))
def test_numbered_instances_are_counted_from_0_and_changed_in_place(before: int, after: int) -> None:
    pool = changing(after, Update("surge", 2, 0), ordinals=frozenset(range(after)))
    model = Model(pool, pool_of(before, config_hash="old"))
    for _ in range(14 * max(before, after) + 20):
        model.step()
        assert model.ready() >= min(before, after) - 1
    assert sorted(row.ordinal for row in model.rows.values()) == list(range(after))
    assert all(row.config_hash == "new" for row in model.rows.values())
    assert model.step() == ()
