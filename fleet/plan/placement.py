"""Which node an instance starts on: pins and labels, then what it takes fits, then spread. Pure.

What runs stays where it is: only instances that are about to start are placed, and one that has been somewhere goes
back there when it may.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.spec.sections import Placement

_SHOWN = 4  # nodes that a refusal names


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    reports: bool = True  # its worker is there to do something
    cordoned: bool = False
    draining: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    cpus: float | None = None  # None: not known, so no limit
    memory_gib: float | None = None
    gpus: int = 0
    trouble: str = ""  # why its worker can start nothing just now


@dataclass(frozen=True, slots=True)
class Demand:
    """An instance that is to be started."""

    instance: str
    pool: str
    placement: Placement
    last: str = ""  # the node of its latest start


@dataclass(frozen=True, slots=True)
class HeldResources:
    """What an instance that has a process (or is being started) takes on its node."""

    instance: str
    pool: str
    node: str
    placement: Placement
    gpus: tuple[int, ...] = ()  # numbers


@dataclass(frozen=True, slots=True)
class PlacedInstance:
    node: str  # empty: there is none
    gpus: tuple[int, ...] = ()
    refusal: str = ""  # why there is none, in words


class _Capacity:
    """What is left on one node."""

    def __init__(self, node: NodeView, held: Sequence[HeldResources]) -> None:
        self.node = node
        self.cpus = None if node.cpus is None else node.cpus - sum(one.placement.cpus for one in held)
        memory = sum(one.placement.memory_gib for one in held)
        self.memory_gib = None if node.memory_gib is None else node.memory_gib - memory
        taken = {number for one in held for number in one.gpus}
        self.gpus = [number for number in range(node.gpus) if number not in taken]
        self.pools = Counter(one.pool for one in held)

    def allocate(self, demand: Demand) -> PlacedInstance:
        placement = demand.placement
        self.cpus = None if self.cpus is None else self.cpus - placement.cpus
        self.memory_gib = None if self.memory_gib is None else self.memory_gib - placement.memory_gib
        given, self.gpus = tuple(self.gpus[: placement.gpus]), self.gpus[placement.gpus :]
        self.pools[demand.pool] += 1
        return PlacedInstance(self.node.name, given)

    def shortage(self, placement: Placement) -> str:
        """What does not fit, in words; empty when it does."""
        if self.cpus is not None and placement.cpus > self.cpus:
            return f"has {_left(self.cpus)} of {self.node.cpus:g} CPUs left ({placement.cpus:g} needed)"
        if self.memory_gib is not None and placement.memory_gib > self.memory_gib:
            left, there = _left(self.memory_gib), self.node.memory_gib
            return f"has {left} of {there:.4g} GiB left ({placement.memory_gib:g} needed)"
        if placement.gpus > len(self.gpus):
            return f"has {len(self.gpus)} of {self.node.gpus} GPUs left ({placement.gpus} needed)"
        return ""


def _left(amount: float) -> str:
    return f"{max(0.0, amount):.4g}"


def place(
    demands: Iterable[Demand], held: Iterable[HeldResources], nodes: Iterable[NodeView]
) -> dict[str, PlacedInstance]:
    """A home for each demand, in the order given; each takes its room before the next is looked at."""
    by_node: dict[str, list[HeldResources]] = {}
    for one in held:
        by_node.setdefault(one.node, []).append(one)
    capacities = {node.name: _Capacity(node, by_node.get(node.name, [])) for node in nodes}
    return {demand.instance: _place_one(demand, capacities) for demand in demands}


def _place_one(demand: Demand, capacities: dict[str, _Capacity]) -> PlacedInstance:
    refusals = {
        name: refusal(demand.placement, capacity.node) or capacity.shortage(demand.placement)
        for name, capacity in capacities.items()
    }
    fitting = [capacities[name] for name, words in refusals.items() if not words]
    if not fitting:
        return PlacedInstance("", refusal=_explain(demand.placement, refusals))
    return min(fitting, key=lambda capacity: _preference(demand, capacity)).allocate(demand)


def _preference(demand: Demand, capacity: _Capacity) -> tuple[bool, int, int, str]:
    here, all_here = capacity.pools[demand.pool], capacity.pools.total()
    if not demand.placement.spread:
        here, all_here = -here, -all_here
    return capacity.node.name != demand.last, here, all_here, capacity.node.name


def refusal(placement: Placement, node: NodeView) -> str:
    """Why nothing of that placement may be started on the node, whatever room there is; empty when it may."""
    misplaced = not_allowed(placement, node)
    if misplaced:
        return misplaced
    if not node.reports:
        return "has no worker"
    if node.trouble:
        return f"can start nothing: {node.trouble}"
    if node.draining:
        return "is being drained"
    return "is cordoned" if node.cordoned else ""


def not_allowed(placement: Placement, node: NodeView) -> str:
    """Why the document does not let it be there; empty when it does."""
    if placement.nodes and node.name not in placement.nodes:
        return "is not among the nodes that it names"
    labels = dict(node.labels)
    missing = [f"{name}={value}" for name, value in sorted(placement.labels.items()) if labels.get(name) != value]
    return f"lacks the label {', '.join(missing)}" if missing else ""


def _explain(placement: Placement, refusals: dict[str, str]) -> str:
    unknown = [name for name in placement.nodes if name not in refusals]
    said = [f"node {name} is not known" for name in unknown]
    # The nodes it could be on say more than those that it does not name.
    named = [name for name in refusals if not placement.nodes or name in placement.nodes]
    said += [f"node {name} {refusals[name]}" for name in named]
    if not said:
        return "there is no node yet; it is started once one reports"
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    return f"{'; '.join(said[:_SHOWN])}{more}; it is started once one can take it"
