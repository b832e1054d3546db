"""Reads KV usage over time, which runs in the twin record, and GPU use, which replays record."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Annotated, TypeVar

import msgspec

from controlplane.common.description import Description
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.modes.gpu_use import STEP_S, GpusOverTime
from controlplane.evidence.experiments.results.twin_records import InstanceKv, KvOverTime
from router.contract.values.reading import read_json

Kept = TypeVar("Kept", GpusOverTime, KvOverTime)


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """The use of an instance or a GPU over time: a row of the heat map."""

    id: str
    usage: Annotated[
        list[float | None], Description("Mean share of the KV blocks in use, 0–1, bucket by bucket; null: not reported")
    ]
    mean: float
    peak: Annotated[float, Description("Highest value of a single second")]


@dataclass(frozen=True, slots=True)
class RunUse:
    """A run; at most 256 buckets of virtual time."""

    arm: str
    seed: int
    bucket_s: float
    of: Annotated[int, Description("Instances in all")]
    instances: list[InstanceUse]


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU, whatever runs on it; the three lists have one value for each point."""

    id: Annotated[str, Description("Node and number, such as gpu-1/0")]
    name: str
    memory_bytes: int
    at_s: Annotated[list[float], Description("After the start of the run, on the wall clock")]
    use: Annotated[list[float], Description("0–1 share of time in which it computed")]
    memory_used_bytes: list[int]
    mean: Annotated[float, Description("Of `use`")]
    peak: float


@dataclass(frozen=True, slots=True)
class RunGpus:
    """A run; at most 720 points for each GPU."""

    arm: str
    seed: int
    gpus: list[NamedGpu]
    absent: Annotated[dict[str, str], Description("Nodes without values, and why")]


def kv_of(experiment: Experiment, arm: str, seed: int | None, limit: int) -> list[RunUse]:
    """Return, by run, the KV usage of the `limit` fullest instances, for runs that recorded it."""
    kept = [(run, _read(run.kv_path, KvOverTime)) for run in _runs(experiment, arm, seed)]
    return [
        RunUse(run.arm, run.seed, found.bucket_s, len(found.instances), _fullest(found.instances, limit))
        for run, found in kept
        if found is not None
    ]


def _fullest(instances: dict[str, InstanceKv], limit: int) -> list[InstanceUse]:
    fullest = set(sorted(instances, key=lambda name: -instances[name].peak)[:limit])
    return [InstanceUse(name, [*one.usage], one.mean, one.peak) for name, one in instances.items() if name in fullest]


def gpu_use_of(experiment: Experiment, arm: str, seed: int | None) -> list[RunGpus]:
    """Return the GPU use of each run that recorded it, and the reasons why some nodes have no values."""
    kept = [(run, _read(run.gpu_path, GpusOverTime)) for run in _runs(experiment, arm, seed)]
    return [
        RunGpus(
            run.arm,
            run.seed,
            [NamedGpu(id=name, **msgspec.structs.asdict(gpu)) for name, gpu in found.gpus.items()],
            found.absent,
        )
        for run, found in kept
        if found is not None
    ]


def gpu_map_of(experiment: Experiment, seed: int) -> list[RunUse]:
    """Return the GPU use in the same form as `kv_of`."""
    found = []
    for run in gpu_use_of(experiment, "", seed):
        step_s = median_low([max(1.0, b - a) for gpu in run.gpus for a, b in pairwise(gpu.at_s)] or [STEP_S])
        shown = [InstanceUse(gpu.id, _evenly(gpu.at_s, gpu.use, step_s), gpu.mean, gpu.peak) for gpu in run.gpus]
        if shown:
            found.append(RunUse(run.arm, run.seed, step_s, len(shown), shown))
    return found


def _evenly(at_s: list[float], values: list[float], step_s: float) -> list[float | None]:
    """Return the newest value at the end of each step; None if it is older than two steps, because the node did not
    report."""
    ends = [step_s * (number + 1) for number in range(int(at_s[-1] // step_s) + 1)]
    newest = [(end, bisect_left(at_s, end) - 1) for end in ends]
    return [values[i] if i >= 0 and end - at_s[i] <= 2 * step_s else None for end, i in newest]


def _runs(experiment: Experiment, arm: str, seed: int | None) -> list[Run]:
    return [run for run in experiment.runs.all() if arm in ("", run.arm) and seed in (None, run.seed)]


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    try:
        return read_json(path.read_bytes(), kind)
    except (OSError, ValueError):
        return None
