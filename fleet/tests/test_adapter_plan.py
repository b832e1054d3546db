"""Placing LoRA adapters: few moves, no third attempt where a load failed twice, and one more home
while all are full.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.plan.adapters import (
    CALM_S,
    FULL_S,
    AdapterHomes,
    AdapterHost,
    HomeChange,
    WantedAdapter,
    next_demand,
    plan_homes,
)


def wanted(*names, homes=1):
    return [WantedAdapter("chat", name, f"/lora/{name}", homes) for name in names]


def hosts(count=4, slots=2, **homes):
    return [AdapterHost(f"chat-{n}", "chat", slots, homes=homes.get(f"chat_{n}", {})) for n in range(count)]


def after(there, changes):
    """Return the adapters of each host once the plan has been carried out."""

    def homes(host):
        mine = {change.name: change for change in changes if change.instance == host.instance}
        kept = {name: state for name, state in host.homes.items() if name not in mine and state != "leaving"}
        return kept | {name: "loaded" for name, change in mine.items() if change.loads}

    return [AdapterHost(host.instance, host.pool, host.slots, host.role, homes(host)) for host in there]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 6))
def test_a_finished_plan_is_empty_and_never_overfills_a_node(homes, count, slots, fewer):
    asked = [WantedAdapter("chat", f"a{n}", "/lora", number) for n, number in enumerate(homes)]
    there = hosts(count, slots)
    done = after(there, plan_homes(asked, there))
    assert all(len(host.homes) <= host.slots for host in done)
    assert plan_homes(asked, done) == []
    held = {name: sum(name in host.homes for host in done) for name in (one.name for one in asked)}
    assert sum(held.values()) == min(sum(min(one.homes, count) for one in asked), count * slots) or all(
        held[one.name] <= one.homes for one in asked
    )
    left = plan_homes(asked[:fewer], done)
    assert {change.name for change in left if not change.loads} == set(held) & {
        one.name for one in asked[fewer:] if held[one.name]
    }


def test_each_adapter_gets_its_homes_and_further_adapters_move_none():
    there = hosts(6)
    done = after(there, plan_homes(wanted("a", "b", homes=2), there))
    more = plan_homes(wanted("a", "b", "c", homes=2), done)
    assert {(change.name, change.loads) for change in more} == {("c", True)}
    assert len(more) == 2


def test_an_instance_that_leaves_moves_only_its_own_adapters():
    there = hosts(5, slots=8)
    names = [f"a{n}" for n in range(12)]
    done = after(there, plan_homes(wanted(*names), there))
    gone = done[0]
    moved = plan_homes(wanted(*names), done[1:])
    assert {change.name for change in moved} == set(gone.homes)


def test_where_a_load_failed_twice_another_home_is_chosen():
    first = plan_homes(wanted("a"), hosts())[0].instance
    there = [
        AdapterHost(host.instance, "chat", 2, homes={"a": "failed"} if host.instance == first else {})
        for host in hosts()
    ]
    (change,) = plan_homes(wanted("a"), there)
    assert change.loads
    assert change.instance != first


def test_an_instance_that_is_no_longer_wanted_leaves_once():
    assert plan_homes([], hosts(1, chat_0={"a": "loaded"})) == [HomeChange("chat-0", "a", "")]
    assert plan_homes([], hosts(1, chat_0={"a": "leaving"})) == []


def test_if_there_are_too_many_homes_the_loaded_one_stays():
    there = hosts(2, chat_0={"a": "loading"}, chat_1={"a": "loaded"})
    assert plan_homes(wanted("a"), there) == [HomeChange("chat-0", "a", "")]


def test_each_role_has_its_own_homes():
    there = [AdapterHost("chat-0", "chat", 1, "prefill"), AdapterHost("chat-1", "chat", 1, "decode")]
    assert {change.instance for change in plan_homes(wanted("a"), there)} == {"chat-0", "chat-1"}


def test_an_adapter_gets_a_home_after_half_a_minute_of_full_ones_and_loses_one_after_a_long_idle_time():
    demand = next_demand(AdapterHomes(), [True, True], 100.0)
    assert (demand.extra, demand.full_since) == (0, 100.0)
    assert next_demand(demand, [True, False], 110.0) == AdapterHomes()
    assert next_demand(demand, [True, True], 100.0 + FULL_S) == AdapterHomes(1)
    calm = next_demand(AdapterHomes(1), [False] * 3, 200.0)
    assert next_demand(calm, [False] * 3, 200.0 + CALM_S) == AdapterHomes(0)
    assert next_demand(calm, [True, False, False], 300.0) == AdapterHomes(1)


@pytest.mark.parametrize("full", [[], [False]])
def test_without_demand_nothing_is_remembered(full):
    assert next_demand(AdapterHomes(), full, 1.0) == AdapterHomes()
