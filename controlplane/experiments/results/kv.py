"""KV usage of each instance over time, as the runs of the twin keep it, and GPU use, as those of a replay do."""

from pathlib import Path
from typing import Any

import orjson

from controlplane.experiments.models import Experiment, Run


def kv_of(experiment: Experiment, arm: str, seed: int | None, limit: int) -> list[dict[str, Any]]:
    """Of each run that has it; of its instances the `limit` fullest, in order of their names."""
    return [found for run in _runs(experiment, arm, seed) if (found := _of_run(run, limit)) is not None]


def gpu_use_of(experiment: Experiment, arm: str, seed: int | None) -> list[dict[str, Any]]:
    """Of each run that has it, with the nodes without values and why."""
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
