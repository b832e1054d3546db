"""Nodes as pages and API show them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from fleet.control import nodes
from fleet.counted import percent
from fleet.models import Instance, Node
from fleet.snapshot import node_views


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: Node
    age_s: float | None  # since its last heartbeat; None: it never reported
    reports: bool  # recent heartbeat, so it may start instances
    instances: tuple[Instance, ...]

    @property
    def status(self) -> str:
        """A word of the status vocabulary."""
        if not self.reports:
            return "offline"
        if self.node.draining:
            return "draining"
        return "warning" if self.node.cordoned or self.trouble else "ready"

    @property
    def status_text(self) -> str:
        texts = {
            "offline": "no heartbeat",
            "draining": "draining",
            "warning": "cordoned" if self.node.cordoned else "cannot start instances",
            "ready": "schedulable",
        }
        return texts[self.status]

    @property
    def trouble(self) -> str:
        """Why its worker cannot start instances, for example an unreachable API server."""
        return str(self.node.inventory.get("trouble", ""))

    @property
    def gpu_use(self) -> str:
        """Of each GPU, from the latest heartbeat; unknown for a cluster."""
        found = self.node.inventory.get("gpus") or ()
        return "; ".join(_describe_use(gpu) for gpu in found if gpu["use"] is not None)

    @property
    def gpus(self) -> str:
        found = self.node.inventory.get("gpus")
        if found is None:
            return f"absent: {self.node.inventory.get('gpus_why', 'not reported')}"
        return _describe_gpus(found) if found else "none"

    @property
    def memory_gib(self) -> float | None:
        return _gib(self.node.inventory.get("memory_bytes"))

    @property
    def disks(self) -> list[tuple[str, float | None, float | None]]:
        """(path, free GiB, GiB)"""
        disks = self.node.inventory.get("disks", ())
        return [(disk["path"], _gib(disk["free_bytes"]), _gib(disk["bytes"])) for disk in disks]


def _describe_gpus(gpus: Iterable[Mapping[str, Any]]) -> str:
    sizes = [(gpu["name"], _gib(gpu["memory_bytes"])) for gpu in gpus]
    names = [name if size is None else f"{name} ({size:.0f} GiB)" for name, size in sizes]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _describe_use(gpu: Mapping[str, Any]) -> str:
    """`0: 45 %, 120.0 of 141.0 GiB`"""
    used, size = (_gib(gpu[name]) for name in ("memory_used_bytes", "memory_bytes"))
    return f"{gpu['number']}: {percent(gpu['use'])}, {used:.1f} of {size:.1f} GiB"


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
