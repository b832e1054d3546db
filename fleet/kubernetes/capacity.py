"""The capacity of a cluster as the inventory of one node: the sum of its machines, a quota, or its file. Pure.

The cluster's scheduler chooses the machine of a Pod; the sums keep Weir from requesting more than exists.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BINARY = {f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTPE")}
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_DEVICES = ("nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neuroncore")
_PRODUCT, _MEMORY_MIB = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"  # labels of NVIDIA's feature discovery
_GIB = 2**30


def quantity(text: str | int | float) -> float:
    """`500m` → 0.5, `2Gi` → 2147483648. ValueError when invalid."""
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


def of_machines(machines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum over schedulable machines."""
    open_ = [one for one in machines if not one.get("spec", {}).get("unschedulable")]
    offered = [one["status"].get("allocatable", {}) for one in open_]
    return {
        "cpus": sum(quantity(one.get("cpu", 0)) for one in offered),
        "memory_bytes": int(sum(quantity(one.get("memory", 0)) for one in offered)),
        "gpus": _numbered(gpu for one in open_ for gpu in _gpus(one)),
        "machines": len(open_),
    }


def _gpus(machine: Mapping[str, Any]) -> list[dict[str, Any]]:
    offered, labels = machine["status"].get("allocatable", {}), machine["metadata"].get("labels") or {}
    found: list[dict[str, Any]] = []
    for device in _DEVICES:
        name, memory = labels.get(_PRODUCT, device), labels.get(_MEMORY_MIB, "")
        size = int(memory) * 2**20 if memory.isdecimal() else None
        found += [{"name": name, "memory_bytes": size}] * int(quantity(offered.get(device, 0)))
    return found


def of_quotas(quotas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The limits of the namespace; the lowest of several quotas."""
    hard = [one["spec"].get("hard", {}) for one in quotas]
    found: dict[str, Any] = {}
    for name, keys in _QUOTAS.items():
        limits = [quantity(one[key]) for one in hard for key in keys if key in one]
        if limits:
            found[name] = min(limits)
    if "memory_bytes" in found:
        found["memory_bytes"] = int(found["memory_bytes"])
    if "gpus" in found:
        found["gpus"] = _numbered({"name": "GPU", "memory_bytes": None} for _ in range(int(found["gpus"])))
    return found


_QUOTAS: Mapping[str, tuple[str, ...]] = {
    "cpus": ("requests.cpu", "cpu"),
    "memory_bytes": ("requests.memory", "memory"),
    "gpus": ("requests.nvidia.com/gpu",),
}


def of_file(given: Mapping[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {"cpus": given["cpus"]} if "cpus" in given else {}
    if "memory_gib" in given:
        found["memory_bytes"] = int(given["memory_gib"] * _GIB)
    if "gpus" in given:
        found["gpus"] = _numbered({"name": "GPU", "memory_bytes": None} for _ in range(int(given["gpus"])))
    return found


def _numbered(gpus: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"number": number, **gpu, "memory_used_bytes": None, "use": None} for number, gpu in enumerate(gpus)]
