"""Chooses the node on which an instance starts: first by pinned nodes and labels, then by free resources, then by
spread. Pure. Only instances that are about to start are placed; an instance returns to its previous node if it fits
there.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.spec.sections import Placement

_SHOWN = 4  # number of nodes named in a refusal


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    reports: bool = True  # True if its worker sends heartbeats
    cordoned: bool = False
    draining: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    cpus: float | None = None  # None: unknown, so unlimited
    memory_gib: float | None = None
    gpus: int = 0
    trouble: str = ""  # why its worker cannot start instances at present


@dataclass(frozen=True, slots=True)
class PendingStart:
    """An instance about to start."""

    instance: str
    pool: str
    placement: Placement
    last: str = ""  # node of its latest start


@dataclass(frozen=True, slots=True)
class HeldResources:
    """Resources of a node that a running or starting instance holds."""

    instance: str
    pool: str
    node: str
    placement: Placement
    gpus: tuple[int, ...] = ()  # numbers of the GPUs


@dataclass(frozen=True, slots=True)
class PlacedInstance:
    node: str  # empty if no node can take it
    gpus: tuple[int, ...] = ()
    refusal: str = ""  # why no node can take it


class _Capacity:
    """Free resources of one node."""

    def __init__(self, node: NodeView, held: Sequence[HeldResources]) -> None:
        self.node = node
        self.cpus = None if node.cpus is None else node.cpus - sum(one.placement.cpus for one in held)
        memory = sum(one.placement.memory_gib for one in held)
        self.memory_gib = None if node.memory_gib is None else node.memory_gib - memory
        taken = {number for one in held for number in one.gpus}
        self.gpus = [number for number in range(node.gpus) if number not in taken]
        self.pools = Counter(one.pool for one in held)

    def allocate(self, demand: PendingStart) -> PlacedInstance:
        placement = demand.placement
        self.cpus = None if self.cpus is None else self.cpus - placement.cpus
        self.memory_gib = None if self.memory_gib is None else self.memory_gib - placement.memory_gib
        given, self.gpus = tuple(self.gpus[: placement.gpus]), self.gpus[placement.gpus :]
        self.pools[demand.pool] += 1
        return PlacedInstance(self.node.name, given)

    def shortage(self, placement: Placement) -> str:
        """Return the missing resource; empty if the placement fits."""
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
    demands: Iterable[PendingStart], held: Iterable[HeldResources], nodes: Iterable[NodeView]
) -> dict[str, PlacedInstance]:
    """Place the demands in the given order; each takes its resources before the next is placed."""
    by_node: dict[str, list[HeldResources]] = {}
    for one in held:
        by_node.setdefault(one.node, []).append(one)
    capacities = {node.name: _Capacity(node, by_node.get(node.name, [])) for node in nodes}
    return {demand.instance: _place_one(demand, capacities) for demand in demands}


def _place_one(demand: PendingStart, capacities: dict[str, _Capacity]) -> PlacedInstance:
    refusals = {
        name: refusal(demand.placement, capacity.node) or capacity.shortage(demand.placement)
        for name, capacity in capacities.items()
    }
    fitting = [capacities[name] for name, reason in refusals.items() if not reason]
    if not fitting:
        return PlacedInstance("", refusal=_explain(demand.placement, refusals))
    return min(fitting, key=lambda capacity: _preference(demand, capacity)).allocate(demand)


def _preference(demand: PendingStart, capacity: _Capacity) -> tuple[bool, int, int, str]:
    here, all_here = capacity.pools[demand.pool], capacity.pools.total()
    if not demand.placement.spread:
        here, all_here = -here, -all_here
    return capacity.node.name != demand.last, here, all_here, capacity.node.name


def refusal(placement: Placement, node: NodeView) -> str:
    """Return why the node accepts no start with this placement, even with free resources; empty if it does."""
    misplaced = not_allowed(placement, node)
    if misplaced:
        return misplaced
    if not node.reports:
        return "has no worker"
    if node.trouble:
        return f"cannot start instances: {node.trouble}"
    if node.draining:
        return "is being drained"
    return "is cordoned" if node.cordoned else ""


def not_allowed(placement: Placement, node: NodeView) -> str:
    """Return why the document does not allow the node; empty if it does."""
    if placement.nodes and node.name not in placement.nodes:
        return "is not in its placement.nodes"
    labels = dict(node.labels)
    missing = [f"{name}={value}" for name, value in sorted(placement.labels.items()) if labels.get(name) != value]
    return f"lacks the label {', '.join(missing)}" if missing else ""


def _explain(placement: Placement, refusals: dict[str, str]) -> str:
    unknown = [name for name in placement.nodes if name not in refusals]
    parts = [f"node {name} is not known" for name in unknown]
    # Refusals by allowed nodes are more useful than refusals by nodes that the placement does not name.
    named = [name for name in refusals if not placement.nodes or name in placement.nodes]
    parts += [f"node {name} {refusals[name]}" for name in named]
    if not parts:
        return "there is no node yet; it starts once one reports"
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return f"{'; '.join(parts[:_SHOWN])}{more}; it starts once a node can take it"
