"""A node's resources, in the form that its worker reports and Node.inventory stores. Pure."""

from typing import Any

from msgspec import Struct

from router.contract.values.reading import read_value


class NodeGpu(Struct, frozen=True):
    number: int
    name: str
    memory_bytes: int | None
    memory_used_bytes: int | None = None
    use: float | None = None  # share of recent time for which it computed
    # Values at the latest heartbeat; None if the GPU does not report them.
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None


class Disk(Struct, frozen=True):
    path: str
    bytes: int
    free_bytes: int


class PodsOfNode(Struct, frozen=True):
    """The contents of a node's Pods, without secrets (fleet/kubernetes/pod_settings.py)."""

    namespace: str
    images: dict[str, str]
    template: dict[str, Any]  # merged into each Pod


class Inventory(Struct, frozen=True, omit_defaults=True):
    """A node's resources. Unknown values are None; values that do not apply to the node are not stored."""

    cpus: float | None
    memory_bytes: int | None
    disks: tuple[Disk, ...]
    gpus: tuple[NodeGpu, ...] | None
    gpus_why: str | None = None  # why its GPUs are unknown
    system: str | None = None
    python: str | None = None
    machines: int | None = None  # number of machines in its cluster
    pods: PodsOfNode | None = None  # shape of the Pods, for a node that is a namespace of a cluster
    trouble: str | None = None  # why it cannot start instances


_NOT_REPORTED = {"cpus": None, "memory_bytes": None, "disks": (), "gpus": None}


def decode_inventory(stored: dict[str, Any]) -> Inventory:
    return read_value(_NOT_REPORTED | stored, Inventory)
