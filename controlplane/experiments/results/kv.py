"""KV usage of each instance over time, as the runs of the twin keep it."""

from typing import Any

import orjson

from controlplane.experiments.models import Experiment, Run


def kv_of(experiment: Experiment, arm: str, seed: int | None, limit: int) -> list[dict[str, Any]]:
    """Of each run that has it; of its instances the `limit` fullest, in order of their names."""
    runs = [run for run in experiment.runs.all() if arm in ("", run.arm) and seed in (None, run.seed)]
    return [found for run in runs if (found := _of_run(run, limit)) is not None]


def _of_run(run: Run, limit: int) -> dict[str, Any] | None:
    try:
        kept = orjson.loads(run.kv_path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    instances: dict[str, Any] = kept["instances"]
    fullest = set(sorted(instances, key=lambda name: -instances[name]["peak"])[:limit])
    shown = [{"id": name, **use} for name, use in instances.items() if name in fullest]
    about = {"arm": run.arm, "seed": run.seed, "bucket_s": kept["bucket_s"], "of": len(instances)}
    return {**about, "instances": shown}
