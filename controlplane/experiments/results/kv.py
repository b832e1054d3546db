"""KV usage of instances over time, recorded by runs in the twin, and GPU use, recorded by replays."""

from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

import orjson

from controlplane.experiments.models import Experiment, Run
from controlplane.experiments.modes.gpu_use import STEP_S


def kv_of(experiment: Experiment, arm: str, seed: int | None, limit: int) -> list[dict[str, Any]]:
    """KV usage of each run that recorded it: of its `limit` fullest instances, in the order of their names."""
    return [found for run in _runs(experiment, arm, seed) if (found := _of_run(run, limit)) is not None]


def gpu_use_of(experiment: Experiment, arm: str, seed: int | None) -> list[dict[str, Any]]:
    """GPU use of each run that recorded it, and why some nodes have no values."""
    kept = [(run, _read(run.gpu_path)) for run in _runs(experiment, arm, seed)]
    return [
        {
            "arm": run.arm,
            "seed": run.seed,
            "gpus": [{"id": name, **gpu} for name, gpu in found["gpus"].items()],
            "absent": found["absent"],
        }
        for run, found in kept
        if found is not None
    ]


def gpu_map_of(experiment: Experiment, seed: int) -> list[dict[str, Any]]:
    """GPU use in the form of `kv_of`."""
    found = []
    for run in gpu_use_of(experiment, "", seed):
        step_s = median_low([max(1.0, b - a) for gpu in run["gpus"] for a, b in pairwise(gpu["at_s"])] or [STEP_S])
        shown = [{**gpu, "usage": _evenly(gpu["at_s"], gpu["use"], step_s)} for gpu in run["gpus"]]
        if shown:
            found.append({**run, "bucket_s": step_s, "of": len(shown), "instances": shown})
    return found


def _evenly(at_s: list[float], values: list[float], step_s: float) -> list[float | None]:
    """The newest value at the end of each step; None where it is older than two steps: the node did not report."""
    ends = [step_s * (number + 1) for number in range(int(at_s[-1] // step_s) + 1)]
    newest = [(end, bisect_left(at_s, end) - 1) for end in ends]
    return [values[i] if i >= 0 and end - at_s[i] <= 2 * step_s else None for end, i in newest]


def _runs(experiment: Experiment, arm: str, seed: int | None) -> list[Run]:
    return [run for run in experiment.runs.all() if arm in ("", run.arm) and seed in (None, run.seed)]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return found


def _of_run(run: Run, limit: int) -> dict[str, Any] | None:
    kept = _read(run.kv_path)
    if kept is None:
        return None
    instances: dict[str, Any] = kept["instances"]
    fullest = set(sorted(instances, key=lambda name: -instances[name]["peak"])[:limit])
    shown = [{"id": name, **use} for name, use in instances.items() if name in fullest]
    about = {"arm": run.arm, "seed": run.seed, "bucket_s": kept["bucket_s"], "of": len(instances)}
    return {**about, "instances": shown}
