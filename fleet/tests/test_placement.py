"""Decide where instances start: what is allowed, what fits, evenly, and with as few moves as possible."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.plan.placement import HeldResources, NodeView, PendingStart, place
from fleet.spec.sections import Placement


def homes(placement: Placement, nodes: list[NodeView], held: Any = (), count: int = 1, last: str = "") -> list[str]:
    demands = [PendingStart(f"p-{n}", "p", placement, last) for n in range(count)]
    return [home.node or home.refusal for home in place(demands, held, nodes).values()]


A, B, C = (NodeView(name, cpus=8, memory_gib=64, gpus=2) for name in "abc")


def test_instances_are_spread_over_the_nodes() -> None:
    assert homes(Placement(), [A, B, C], count=5) == ["a", "b", "c", "a", "b"]


def test_without_spread_the_fewest_possible_nodes_are_used() -> None:
    assert homes(Placement(spread=False, gpus=1), [A, B], count=3) == ["a", "a", "b"]


def test_a_returning_instance_goes_to_its_last_node() -> None:
    held = [HeldResources("p-9", "p", "b", Placement())]
    assert homes(Placement(), [A, B], held, last="b") == ["b"]


def test_a_pin_and_a_label_choose_the_node() -> None:
    labelled = NodeView("c", labels=(("zone", "x"),))
    assert homes(Placement(nodes=("b",)), [A, B, labelled]) == ["b"]
    assert homes(Placement(labels={"zone": "x"}), [A, B, labelled]) == ["c"]


@pytest.mark.parametrize(
    ("placement", "node", "words"),
    [
        (Placement(nodes=("z",)), A, "node z is not known"),
        (Placement(labels={"zone": "x"}), A, "node a lacks the label zone=x"),
        (Placement(), NodeView("a", reports=False), "node a has no worker"),
        (Placement(), NodeView("a", cordoned=True), "node a is cordoned"),
        (Placement(), NodeView("a", draining=True), "node a is being drained"),
        (Placement(cpus=9), A, "node a has 8 of 8 CPUs left (9 needed)"),
        (Placement(memory_gib=65), A, "node a has 64 of 64 GiB left (65 needed)"),
        (Placement(gpus=3), A, "node a has 2 of 2 GPUs left (3 needed)"),
    ],
)
def test_an_instance_without_a_node_shows_the_reason(placement: Placement, node: NodeView, words: str) -> None:
    assert homes(placement, [node]) == [f"{words}; it starts once a node can take it"]


def test_a_long_list_of_refusals_is_shortened_and_a_fleet_without_nodes_reported() -> None:
    (words,) = homes(Placement(gpus=9), [NodeView(f"n{i}") for i in range(9)])
    assert "and 5 more" in words
    assert homes(Placement(), []) == ["there is no node yet; it starts once one reports"]


def test_gpus_are_assigned_by_number_and_never_twice() -> None:
    held = [HeldResources("q-0", "q", "a", Placement(gpus=1), (0,))]
    found = place([PendingStart(f"p-{n}", "p", Placement(gpus=1)) for n in range(2)], held, [A])
    assert [(home.node, home.gpus) for home in found.values()] == [("a", (1,)), ("", ())]


def test_a_node_of_unknown_size_accepts_anything_but_gpus() -> None:
    assert homes(Placement(cpus=999, memory_gib=999), [NodeView("a")]) == ["a"]


placements = st.builds(
    Placement,
    nodes=st.sampled_from([(), ("a",), ("a", "c")]),
    labels=st.sampled_from([{}, {"zone": "x"}]),
    spread=st.booleans(),
    cpus=st.sampled_from([0.0, 1.0, 3.0]),
    gpus=st.integers(0, 2),
)
node_sets = st.lists(
    st.builds(
        NodeView,
        name=st.sampled_from("abcd"),
        reports=st.booleans(),
        cordoned=st.booleans(),
        labels=st.sampled_from([(), (("zone", "x"),)]),
        cpus=st.none() | st.integers(1, 8),
        gpus=st.integers(0, 4),
    ),
    unique_by=lambda node: node.name,
)


@given(st.lists(placements, max_size=8), node_sets)
def test_no_instance_is_placed_on_a_forbidden_node_and_no_resource_is_given_twice(
    wanted: list[Placement], nodes: list[NodeView]
) -> None:
    demands = [PendingStart(f"p-{n}", "p", placement) for n, placement in enumerate(wanted)]
    found = place(demands, [], nodes)
    for node in nodes:
        here = [demand for demand in demands if found[demand.instance].node == node.name]
        gpus = [number for demand in here for number in found[demand.instance].gpus]
        assert len(gpus) == len(set(gpus)) == sum(demand.placement.gpus for demand in here) <= node.gpus
        assert node.cpus is None or sum(demand.placement.cpus for demand in here) <= node.cpus
        for demand in here:
            assert node.reports
            assert not node.cordoned
            assert not demand.placement.nodes or node.name in demand.placement.nodes
            assert demand.placement.labels.items() <= dict(node.labels).items()
    assert all(bool(home.node) != bool(home.refusal) for home in found.values())


@given(st.lists(placements, min_size=1, max_size=6), node_sets)
def test_placing_instances_again_moves_none(wanted: list[Placement], nodes: list[NodeView]) -> None:
    first = place([PendingStart(f"p-{n}", "p", one) for n, one in enumerate(wanted)], [], nodes)
    again = [PendingStart(f"p-{n}", "p", one, first[f"p-{n}"].node) for n, one in enumerate(wanted)]
    there = [demand for demand in again if demand.last]
    assert {n: home.node for n, home in place(there, [], nodes).items()} == {one.instance: one.last for one in there}
