"""A fleet's columns match its instances, whatever has been replaced or left out."""

import random

from router.policy.decide import decide
from router.policy.fleet import COLUMNS_KEPT, FleetColumns
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import InstanceState, RoutingRequest


def busy(instance: InstanceState, more: float) -> float:
    return instance.running + more


def fleet_of_four() -> FleetColumns:
    return FleetColumns(InstanceState(name, running=number, waiting=10 * number) for number, name in enumerate("dbca"))


def test_a_column_is_built_once_and_follows_replaced_instances() -> None:
    fleet = fleet_of_four()
    running, busier = fleet.running, fleet.column(busy, 0.5)
    fleet.replace(2, InstanceState("c", running=7))
    assert fleet.running is running
    assert running == [0, 1, 7, 3]
    assert fleet.column(busy, 0.5) is busier
    assert busier == [0.5, 1.5, 7.5, 3.5]
    assert fleet.waiting == [0, 10, 0, 30]


def test_a_fleet_is_divided_while_an_instance_serves_only_part_of_a_request() -> None:
    fleet = fleet_of_four()
    assert not fleet.is_divided
    fleet.replace(2, InstanceState("c", role="decode"))
    assert fleet.is_divided
    assert not fleet.without(2).is_divided
    fleet.replace(2, InstanceState("c"))
    assert not fleet.is_divided


def test_a_part_has_its_own_columns() -> None:
    fleet = fleet_of_four()
    assert fleet.only([True, False, True, False]).running == [0, 2]
    rest = fleet.without(1)
    assert [one.id for one in rest] == rest.ids == ["d", "c", "a"]
    assert rest.only([False, True, True]).column(busy, 1) == [3, 4]
    assert fleet.running == [0, 1, 2, 3]


def test_instances_are_selected_by_name_and_ordered_by_id() -> None:
    fleet = fleet_of_four()
    assert fleet.order == [3, 1, 2, 0]
    assert [fleet.position(name) for name in ("c", "x", None)] == [2, None, None]
    assert fleet.without(2).position("a") == 2
    assert fleet[1].id == "b"
    assert [one.id for one in fleet[1:3]] == ["b", "c"]


def test_columns_of_former_policies_are_not_kept_forever() -> None:
    fleet = fleet_of_four()
    for weight in range(10 * COLUMNS_KEPT):
        assert fleet.column(busy, weight)[1] == 1 + weight
        fleet.replace(0, InstanceState("d"))
    assert len(fleet._columns) <= COLUMNS_KEPT + 1


def test_a_reused_fleet_view_decides_like_a_new_one() -> None:
    """Its earlier decisions do not change when the view does."""
    rng = random.Random(3)
    kept = FleetColumns(InstanceState(f"i-{number}", kv_tokens=10_000, connector="nixl") for number in range(7))
    policies = [document.parse({"strategy": {"name": name}, "flow": {"heavy": "offload"}}) for name in STRATEGIES]
    made = []
    for turn in range(300):
        position = rng.randrange(7)
        kept.replace(position, _any_instance(rng, kept[position].id))
        request = RoutingRequest(
            rng.choice((100, 8_000, 60_000)),
            session="s",
            bound_to=rng.choice((None, "i-3", "gone")),
            held={name: rng.choice((64, 4_096)) for name in rng.sample(kept.ids, 2)},
            turn=turn,
        )
        policy = policies[turn % len(policies)]
        decision = decide(request, kept, policy, rng.random())
        again = decide(request, list(kept), policy, decision.candidates.inputs()["draw"])  # type: ignore[attr-defined]
        made.append((again, decision))
    assert all(again == decision for again, decision in made)


def _any_instance(rng: random.Random, name: str) -> InstanceState:
    return InstanceState(
        name,
        running=rng.randrange(5),
        waiting=rng.randrange(3),
        decodes=rng.randrange(4),
        prefill_tokens=rng.choice((0, 50_000)),
        kv_usage=rng.choice((0.1, 0.5, 0.99)),
        kv_tokens=10_000,
        refused=rng.choice(("", "", "", "draining")),
        role=rng.choice(("both", "both", "decode", "prefill")),
        connector=rng.choice(("nixl", "nixl", "")),
        pair=rng.choice(("", "", "e-1")),
    )
