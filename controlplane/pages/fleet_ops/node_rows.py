"""Nodes in the form that pages and the API show."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from django.db.models import QuerySet
from django.utils import timezone

from fleet.control import nodes
from fleet.counted import percent
from fleet.kinds.resources import Inventory, NodeGpu
from fleet.models import Instance, Node
from fleet.snapshot import node_views
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import NODE_GONE_S


@dataclass(frozen=True)
class NodeRow:
    node: Node
    age_s: float | None  # time since its last heartbeat; None if it never reported
    reports: bool  # True if its heartbeat is recent, so that it may start instances
    instances: tuple[Instance, ...]

    @property
    def status(self) -> str:
        """Return a term of the status vocabulary."""
        if not self.reports:
            return "offline"
        if self.node.draining:
            return "draining" if self.instances else "drained"
        return "warning" if self.node.cordoned or self.trouble else "ready"

    @property
    def status_text(self) -> str:
        texts = {
            "offline": "no heartbeat",
            "draining": "draining",
            "drained": "drained",
            "warning": "cordoned" if self.node.cordoned else "cannot start instances",
            "ready": "schedulable",
        }
        return texts[self.status]

    @cached_property
    def resources(self) -> Inventory:
        return self.node.resources

    @property
    def trouble(self) -> str:
        """Return why the node's worker cannot start instances, such as an unreachable API server."""
        return self.resources.trouble or ""

    @property
    def gpu_use(self) -> str:
        """Return the use of each GPU, from the latest heartbeat; unknown for a cluster."""
        return use_of(self.resources.gpus or ())

    @property
    def gpus(self) -> str:
        found = self.resources.gpus
        if found is None:
            why = self.resources.gpus_why
            return f"absent: {'not reported' if why is None else why}"
        return _describe_gpus(found) if found else "none"

    @property
    def memory_gib(self) -> float | None:
        return _gib(self.resources.memory_bytes)

    @property
    def disks(self) -> list[tuple[str, float | None, float | None]]:
        """Return the disks: (path, free GiB, GiB)."""
        return [(disk.path, _gib(disk.free_bytes), _gib(disk.bytes)) for disk in self.resources.disks]


def _describe_gpus(gpus: Iterable[NodeGpu]) -> str:
    sizes = [(gpu.name, _gib(gpu.memory_bytes)) for gpu in gpus]
    names = [name if size is None else f"{name} ({size:.0f} GiB)" for name, size in sizes]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def gpu_use_of(instance: Instance, sample: InstanceSample | None) -> str:
    """Describe the use of the instance's GPUs from the latest heartbeat of its node or, for a simulated engine, by its
    law; empty if it has none."""
    if instance.gpus:
        return _use_on_node(instance) or "not reported"
    return simulated_use([sample])


def simulated_use(samples: Iterable[InstanceSample | None]) -> str:
    """Describe the GPUs of simulated engines by their laws; empty if there are none."""
    gpus = [each.gpu for each in samples if each is not None and each.gpu is not None and each.gpu.simulated]
    if not gpus:
        return ""
    use, memory, power_w = (_known(getattr(each, name) for each in gpus) for name in ("use", "memory", "power_w"))
    parts = [f"{percent(fmean(use))} of the last minute"] if use else []
    parts += [f"{percent(fmean(memory))} of the memory"] if memory else []
    parts += [f"{sum(power_w):,.0f} W"] if power_w else []
    by = "the simulated engine" if len(gpus) == 1 else f"{len(gpus)} simulated engines"
    return f"{', '.join(parts)}, by the law of {by}; it knows no temperature or clock"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _use_on_node(instance: Instance) -> str:
    node = Node.objects.filter(name=instance.node).first()
    if node is None:
        return ""
    silent_s = nodes.age_s(node)
    if silent_s is None or silent_s > NODE_GONE_S:
        return "not reported: its node is silent"
    own = use_of(gpu for gpu in node.resources.gpus or () if gpu.number in instance.gpus)
    return own or f"not reported: {node.resources.gpus_why or 'its node knows no GPU with this number'}"


def use_of(gpus: Iterable[NodeGpu]) -> str:
    return "; ".join(_describe_use(gpu, gpu.use) for gpu in gpus if gpu.use is not None)


def _describe_use(gpu: NodeGpu, use: float) -> str:
    """Format a GPU's use: `0: 45 %, 120.0 of 141.0 GiB, 412 of 700 W, 54 °C, 1980 MHz`."""
    parts = [f"{gpu.number}: {percent(use)}", f"{_gib(gpu.memory_used_bytes):.1f} of {_gib(gpu.memory_bytes):.1f} GiB"]
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
        parts.append(f"{gpu.power_w:.0f}{limit} W")
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c:.0f} °C")
    if gpu.clock_mhz is not None:
        parts.append(f"{gpu.clock_mhz:.0f} MHz")
    return ", ".join(parts)


def _gib(size: int | None) -> float | None:
    return None if size is None else size / 2**30


def node_rows(found: "QuerySet[Node]") -> list[NodeRow]:
    reports = {view.name for view in node_views(timezone.now()) if view.reports}
    there: dict[str, list[Instance]] = {}
    for instance in Instance.objects.select_related("pool").order_by("pool__name", "ordinal"):
        there.setdefault(instance.node, []).append(instance)
    return [
        NodeRow(node, nodes.age_s(node), node.name in reports, tuple(there.get(node.name, ())))
        for node in found.order_by("name")
    ]
