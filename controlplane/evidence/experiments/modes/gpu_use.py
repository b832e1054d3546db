"""GPU use during a replay: the nodes' reports with each heartbeat, in a file that grows during the run. The use of a
whole GPU counts, whatever else runs on it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import msgspec
from django.utils import timezone
from msgspec import Struct

from controlplane.evidence.experiments.record import GpuUseFacts, MeanPeak, RunFacts
from controlplane.evidence.experiments.results.output.effects import shown
from fleet.models import Node
from fleet.snapshot import node_views

STEP_S = 5.0  # reporting interval of nodes
MOST_POINTS = 720  # points per GPU; when they are exceeded, every second point is dropped, also of those that follow
NONE = "no GPU on this node"


class GpuOverTime(Struct, frozen=True):
    """The use of a GPU; each list has a value for each point."""

    name: str
    memory_bytes: int
    at_s: list[float]
    use: list[float]
    memory_used_bytes: list[int]
    mean: float
    peak: float


class GpusOverTime(Struct, frozen=True):
    gpus: dict[str, GpuOverTime]  # use by node/number
    absent: dict[str, str]  # reason for missing values by node


@dataclass(slots=True)
class GpuSeries:
    """The growing series of a GPU. `points` has (seconds after the start by wall clock, busy share of the time, bytes
    in use)."""

    name: str
    memory_bytes: int
    points: list[tuple[float, float, int]] = field(default_factory=list)

    def so_far(self) -> GpuOverTime:
        at_s, use, memory = [p[0] for p in self.points], [p[1] for p in self.points], [p[2] for p in self.points]
        return GpuOverTime(
            self.name, self.memory_bytes, at_s, use, memory, mean=round(fmean(use), 4), peak=round(max(use), 4)
        )


@dataclass(slots=True)
class GpuUse:
    nodes: tuple[str, ...]
    path: Path
    step_s: float = STEP_S
    _series: dict[str, GpuSeries] = field(default_factory=dict)  # series by node/number
    _absent: dict[str, str] = field(default_factory=dict)  # reason for missing values by node
    _looked_s: float | None = None

    def look(self, at_s: float) -> None:
        """Read the nodes once per interval. Raise OSError and DatabaseError."""
        if self._looked_s is not None and at_s - self._looked_s < self.step_s:
            return
        self._looked_s = at_s
        reporting = {view.name for view in node_views(timezone.now()) if view.reports}
        for node in Node.objects.filter(name__in=reporting.intersection(self.nodes)):
            self._read(node, at_s)
        if any(len(series.points) > MOST_POINTS for series in self._series.values()):
            self._thin()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(msgspec.json.encode(self.so_far()))

    def _read(self, node: Node, at_s: float) -> None:
        gpus = node.inventory.get("gpus")
        if not gpus:
            self._absent[node.name] = NONE if gpus == [] else node.inventory.get("gpus_why") or "GPUs not reported"
        for gpu in gpus or ():
            if gpu["use"] is not None:
                series = self._series.setdefault(
                    f"{node.name}/{gpu['number']}", GpuSeries(gpu["name"], gpu["memory_bytes"])
                )
                series.points.append((round(at_s, 1), gpu["use"], gpu["memory_used_bytes"]))

    def _thin(self) -> None:
        self.step_s *= 2
        for series in self._series.values():
            series.points = series.points[::2]

    def so_far(self) -> GpusOverTime:
        return GpusOverTime({name: series.so_far() for name, series in self._series.items()}, self._absent)

    def facts(self) -> GpuUseFacts:
        """Return the run's means and peaks, without the series."""
        gpus = {name: MeanPeak(gpu.mean, gpu.peak) for name, gpu in self.so_far().gpus.items()}
        return GpuUseFacts(gpus, self._absent)


def described(facts: RunFacts) -> str:
    """Format GPU use for the table of runs: `gpu-1/0: mean 45 %, peak 90 %`, or the reason why there is none."""
    if not (use := facts.gpu_use):
        return "–"
    gpus = [f"{name}: mean {shown(one.mean, '%')}, peak {shown(one.peak, '%')}" for name, one in use.gpus.items()]
    return "; ".join([*gpus, *(f"{node}: {why}" for node, why in use.absent.items())]) or "not reported"
