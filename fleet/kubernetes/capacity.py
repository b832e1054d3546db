"""The capacity of a cluster as the inventory of one node: the sum of its machines, a quota, or the node's file. Pure.
The cluster's scheduler chooses the machine of a Pod; the sums prevent Weir from requesting more than exists.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from fleet.kinds.resources import NodeGpu
from fleet.kubernetes.objects import Resource

_BINARY = {f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTPE")}
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_DEVICES = ("nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neuroncore")
_PRODUCT, _MEMORY_MIB = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"  # labels of NVIDIA's feature discovery
_GIB = 2**30


def quantity(text: str | int | float) -> float:
    """Parse a quantity: `500m` → 0.5, `2Gi` → 2147483648. Raise ValueError if it is invalid."""
    written = str(text)
    for suffix, factor in (*_BINARY.items(), *_DECIMAL.items()):
        number = written.removesuffix(suffix) if suffix else written
        if suffix and number == written:
            continue
        try:
            return float(number) * factor
        except ValueError:
            continue
    raise ValueError(f"{written!r} is not a quantity")


@dataclass(frozen=True, slots=True)
class Capacity:
    """Resources of a node; None where unknown."""

    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: tuple[NodeGpu, ...] | None = None
    machines: int | None = None

    def over(self, base: "Capacity") -> "Capacity":
        """Return the known values of this capacity, completed by those of `base`."""
        known = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        return replace(base, **known)


def of_machines(machines: Iterable[Resource]) -> Capacity:
    """Sum up the schedulable machines."""
    schedulable = [one for one in machines if not one.spec.unschedulable]
    offered = [one.status.allocatable for one in schedulable]
    return Capacity(
        sum(quantity(one.get("cpu", 0)) for one in offered),
        int(sum(quantity(one.get("memory", 0)) for one in offered)),
        _gpus(gpu for one in schedulable for gpu in _offered_gpus(one)),
        len(schedulable),
    )


def _offered_gpus(machine: Resource) -> Iterator[tuple[str, int | None]]:
    """Yield (name, bytes of memory) of each GPU."""
    labels = machine.metadata.labels or {}
    for device in _DEVICES:
        memory = labels.get(_MEMORY_MIB, "")
        size = int(memory) * 2**20 if memory.isdecimal() else None
        count = int(quantity(machine.status.allocatable.get(device, 0)))
        yield from [(labels.get(_PRODUCT, device), size)] * count


def of_quotas(quotas: Iterable[Resource]) -> Capacity:
    """Return the limits of the namespace; the lowest of several quotas."""
    hard = [one.spec.hard for one in quotas]

    def lowest(*keys: str) -> float | None:
        return min((quantity(one[key]) for one in hard for key in keys if key in one), default=None)

    return _limits(
        lowest("requests.cpu", "cpu"), lowest("requests.memory", "memory"), lowest("requests.nvidia.com/gpu")
    )


def of_file(given: Mapping[str, float]) -> Capacity:
    memory_gib = given.get("memory_gib")
    return _limits(given.get("cpus"), None if memory_gib is None else memory_gib * _GIB, given.get("gpus"))


def _limits(cpus: float | None, memory_bytes: float | None, gpus: float | None) -> Capacity:
    return Capacity(
        cpus,
        None if memory_bytes is None else int(memory_bytes),
        None if gpus is None else _gpus([("GPU", None)] * int(gpus)),
    )


def _gpus(found: Iterable[tuple[str, int | None]]) -> tuple[NodeGpu, ...]:
    return tuple(NodeGpu(number, name, size) for number, (name, size) in enumerate(found))
