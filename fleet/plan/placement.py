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
    seen: bool = True  # its worker is there to do something
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


class _Room:
    """What is left on one node."""

    def __init__(self, node: NodeView, held: Sequence[HeldResources]) -> None:
        self.node = node
        self.cpus = None if node.cpus is None else node.cpus - sum(one.placement.cpus for one in held)
        memory = sum(one.placement.memory_gib for one in held)
        self.memory_gib = None if node.memory_gib is None else node.memory_gib - memory
        taken = {number for one in held for number in one.gpus}
        self.gpus = [number for number in range(node.gpus) if number not in taken]
        self.pools = Counter(one.pool for one in held)

    def take(self, demand: Demand) -> PlacedInstance:
        wanted = demand.placement
        self.cpus = None if self.cpus is None else self.cpus - wanted.cpus
        self.memory_gib = None if self.memory_gib is None else self.memory_gib - wanted.memory_gib
        given, self.gpus = tuple(self.gpus[: wanted.gpus]), self.gpus[wanted.gpus :]
        self.pools[demand.pool] += 1
        return PlacedInstance(self.node.name, given)

    def lacks(self, wanted: Placement) -> str:
        """What does not fit, in words; empty when it does."""
        if self.cpus is not None and wanted.cpus > self.cpus:
            return f"has {_left(self.cpus)} of {self.node.cpus:g} CPUs left ({wanted.cpus:g} needed)"
        if self.memory_gib is not None and wanted.memory_gib > self.memory_gib:
            left, there = _left(self.memory_gib), self.node.memory_gib
            return f"has {left} of {there:.4g} GiB left ({wanted.memory_gib:g} needed)"
        if wanted.gpus > len(self.gpus):
            return f"has {len(self.gpus)} of {self.node.gpus} GPUs left ({wanted.gpus} needed)"
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
    rooms = {node.name: _Room(node, by_node.get(node.name, [])) for node in nodes}
    return {demand.instance: _home(demand, rooms) for demand in demands}


def _home(demand: Demand, rooms: dict[str, _Room]) -> PlacedInstance:
    refusals = {
        name: refusal(demand.placement, room.node) or room.lacks(demand.placement) for name, room in rooms.items()
    }
    fitting = [rooms[name] for name, words in refusals.items() if not words]
    if not fitting:
        return PlacedInstance("", refusal=_in_words(demand.placement, refusals))
    return min(fitting, key=lambda room: _preference(demand, room)).take(demand)


def _preference(demand: Demand, room: _Room) -> tuple[bool, int, int, str]:
    here, all_here = room.pools[demand.pool], room.pools.total()
    if not demand.placement.spread:
        here, all_here = -here, -all_here
    return room.node.name != demand.last, here, all_here, room.node.name


def refusal(wanted: Placement, node: NodeView) -> str:
    """Why nothing of that placement may be started on the node, whatever room there is; empty when it may."""
    misplaced = not_allowed(wanted, node)
    if misplaced:
        return misplaced
    if not node.seen:
        return "has no worker"
    if node.trouble:
        return f"can start nothing: {node.trouble}"
    if node.draining:
        return "is being drained"
    return "is cordoned" if node.cordoned else ""


def not_allowed(wanted: Placement, node: NodeView) -> str:
    """Why the document does not let it be there; empty when it does."""
    if wanted.nodes and node.name not in wanted.nodes:
        return "is not among the nodes that it names"
    labels = dict(node.labels)
    missing = [f"{name}={value}" for name, value in sorted(wanted.labels.items()) if labels.get(name) != value]
    return f"lacks the label {', '.join(missing)}" if missing else ""


def _in_words(wanted: Placement, refusals: dict[str, str]) -> str:
    unknown = [name for name in wanted.nodes if name not in refusals]
    said = [f"node {name} is not known" for name in unknown]
    # The nodes it could be on say more than those that it does not name.
    named = [name for name in refusals if not wanted.nodes or name in wanted.nodes]
    said += [f"node {name} {refusals[name]}" for name in named]
    if not said:
        return "there is no node yet; it is started once one reports"
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    return f"{'; '.join(said[:_SHOWN])}{more}; it is started once one can take it"
