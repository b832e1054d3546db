"""CPUs, memory, disks and GPUs of this host. Unknown values are None; for GPUs, the reason is given."""

import contextlib
import importlib
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.kinds.resources import Disk, Inventory, NodeGpu

MEMORY_MAX = Path("/sys/fs/cgroup/memory.max")


def inventory(folder: Path) -> Inventory:
    """Return the inventory. `folder`: where instances write logs and files."""
    gpus, why = read_gpus()
    return Inventory(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        disks=disks(folder),
        gpus=gpus,
        gpus_why=why,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def memory_bytes() -> int | None:
    """Return the host's memory, or the container's limit if that is lower."""
    limits = [limit for limit in (_meminfo(), _cgroup()) if limit is not None]
    return min(limits, default=None)


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    total = next((line.split()[1] for line in lines if line.startswith("MemTotal:")), None)
    return None if total is None else int(total) * 1024


def _cgroup() -> int | None:
    try:
        text = MEMORY_MAX.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def disks(folder: Path) -> tuple[Disk, ...]:
    """Return the disks of / and of the folder, without duplicates."""
    by_device: dict[int, Disk] = {}
    for path in (Path("/"), folder):
        try:
            device, usage = path.stat().st_dev, shutil.disk_usage(path)
        except OSError:
            continue
        by_device.setdefault(device, Disk(str(path), usage.total, usage.free))
    return tuple(by_device.values())


def read_gpus() -> tuple[tuple[NodeGpu, ...] | None, str]:
    """Return the GPUs by NVML (package nvidia-ml-py); None with the reason if it does not answer."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"NVML does not answer: {error}"
    try:
        return tuple(_gpu(nvml, number) for number in range(nvml.nvmlDeviceGetCount())), ""
    except nvml.NVMLError as error:
        return None, f"NVML does not answer: {error}"
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, number: int) -> NodeGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    name, memory = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle)
    name = name.decode() if isinstance(name, bytes) else name
    use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return NodeGpu(number, name, int(memory.total), int(memory.used), use, **_sensors(nvml, handle))


# Field of NodeGpu → (function of NVML, arguments, factor). The argument 0 is NVML_TEMPERATURE_GPU or
# NVML_CLOCK_GRAPHICS.
SENSORS: Mapping[str, tuple[str, tuple[int, ...], float]] = {
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    "temperature_c": ("nvmlDeviceGetTemperature", (0,), 1.0),
    "clock_mhz": ("nvmlDeviceGetClockInfo", (0,), 1.0),
}


def _sensors(nvml: Any, handle: Any) -> dict[str, float]:
    """Return the values reported by this GPU; virtual or older GPUs lack some."""
    found = {}
    for field, (function, arguments, factor) in SENSORS.items():
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            found[field] = getattr(nvml, function)(handle, *arguments) * factor
    return found
