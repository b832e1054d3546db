"""Rates of the last minute, from the totals of an engine's metrics. Pure."""

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from fleet.kinds.resources import NodeGpu
from router.contract.redis.sample import EngineMetrics, GpuSample, TierSample

WINDOW_S = 60.0  # window for rates
FULL_SHARE = 0.02  # free share of the disk below which there may be no space for files of several MB


def free_space(folder: str) -> tuple[int, int] | None:
    """Return (free, total) bytes of the disk of the folder, which need not exist yet; None if unknown."""
    if not folder:
        return None
    path = Path(folder).absolute()
    try:
        stat = os.statvfs(next((each for each in (path, *path.parents) if each.exists()), path))
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


def is_full(left: tuple[int, int] | None) -> bool:
    return left is not None and left[0] < FULL_SHARE * left[1]


@dataclass(slots=True)
class TotalsWindow:
    """Totals over the last minute, as (Unix s, values)."""

    points: deque[tuple[float, tuple[float, ...]]] = field(default_factory=deque)

    def add(self, at: float, *totals: float | None) -> None:
        values = tuple(value for value in totals if value is not None)
        if len(values) < len(totals):
            return
        if self.points and values[0] < self.points[-1][1][0]:
            self.points.clear()  # the engine has restarted
        self.points.append((at, values))
        while len(self.points) > 2 and self.points[1][0] <= at - WINDOW_S:
            self.points.popleft()

    def grown(self) -> tuple[float, ...]:
        """Return (seconds, growth of each total); empty until the second reading."""
        if len(self.points) < 2:
            return ()
        (begin, first), (end, last) = self.points[0], self.points[-1]
        return (end - begin, *(new - old for old, new in zip(first, last, strict=True)))

    def per_s(self) -> float | None:
        """Return the growth per second of a single total."""
        seconds, size = self.grown() or (0.0, 0.0)
        return size / seconds if seconds > 0 else None

    def share(self) -> float | None:
        """Return the growth of the second total per growth of the first; None if the first did not grow."""
        _, asked, found = self.grown() or (0.0, 0.0, 0.0)
        return min(1.0, max(0.0, found / asked)) if asked > 0 else None


def gpu_sample(gpus: Sequence[NodeGpu]) -> GpuSample:
    used, power = [gpu.memory_used_bytes for gpu in gpus], [gpu.power_w for gpu in gpus]
    sizes, uses = [gpu.memory_bytes for gpu in gpus], [gpu.use for gpu in gpus]
    in_use, size, watts, use = _sum(used), _sum(sizes), _sum(power), _sum(uses)
    memory = in_use / size if in_use is not None and size else None
    return GpuSample(use=None if use is None else use / len(gpus), memory=memory, power_w=watts)


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


@dataclass(slots=True)
class InstanceReadings:
    """Readings from one process of an instance."""

    cache: TotalsWindow = field(default_factory=TotalsWindow)  # looked-up tokens, and the cached tokens among them
    moved: TotalsWindow = field(default_factory=TotalsWindow)  # bytes of KV moved
    busy: TotalsWindow = field(default_factory=TotalsWindow)  # seconds for which its GPU computed
    energy: TotalsWindow = field(default_factory=TotalsWindow)  # joules of a simulated engine's GPUs
    tiers: dict[tuple[str, str], TotalsWindow] = field(default_factory=dict)  # totals by tier and kind of figure

    def add(self, at: float, metrics: EngineMetrics) -> None:
        self.cache.add(at, metrics.prefix_queries_total, metrics.prefix_hits_total)
        self.moved.add(at, metrics.transfers.get("bytes"))
        self.busy.add(at, metrics.busy_s_total)
        self.energy.add(at, metrics.gpu_energy_j_total)
        for name, tier in metrics.kv_tiers.items():
            self._window(name, "read").add(at, tier.read_bytes_total)
            self._window(name, "written").add(at, tier.written_bytes_total)
            self._window(name, "hits").add(at, tier.queries_total, tier.hits_total)

    def hit_rate(self) -> float | None:
        """Return the share of the looked-up tokens that were cached; None if no prompt was looked up."""
        return self.cache.share()

    def transfer_bytes_per_s(self) -> float | None:
        return self.moved.per_s()

    def gpu(self, gpus: Iterable[NodeGpu], memory: float | None) -> GpuSample | None:
        """Return the figures of the instance's GPUs; for a simulated engine, those of its law. `memory` is the share
        that it reports to hold."""
        found = tuple(gpus)
        if found:
            return gpu_sample(found)
        use, power_w = self.busy.per_s(), self.energy.per_s()
        if use is None and memory is None:
            return None
        return GpuSample(use=None if use is None else min(1.0, use), memory=memory, power_w=power_w, simulated=True)

    def with_rates(self, tiers: Mapping[str, TierSample]) -> dict[str, TierSample]:
        return {name: self._with_rates(name, tier) for name, tier in tiers.items()}

    def _with_rates(self, name: str, tier: TierSample) -> TierSample:
        return structs.replace(
            tier,
            read_bytes_per_s=self._window(name, "read").per_s(),
            written_bytes_per_s=self._window(name, "written").per_s(),
            hit_rate=self._window(name, "hits").share(),
        )

    def _window(self, tier: str, counted: str) -> TotalsWindow:
        return self.tiers.setdefault((tier, counted), TotalsWindow())
