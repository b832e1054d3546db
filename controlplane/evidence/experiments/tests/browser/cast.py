"""The rows and records of the browser tests, created inside the web process's data folder."""

import json
import random
from typing import Any

from controlplane.evidence.experiments.models import Experiment, Matrix, Run
from controlplane.evidence.experiments.tests.conftest import arm_of, record, write_records
from controlplane.traffic.policies.services import ensure_default_policy
from fleet.models import Pool

TWIN = {
    "twin": {"basis": "profile", "about": "constants of h100_sxm, Llama-3.1-8B", "cautions": []},
    "virtual_s": 71.5,
    "kv_usage": {"mean": 0.12, "peak": 0.5},
}


def make() -> None:
    ensure_default_policy()
    Pool.objects.create(name="demo", model="llama-3.1-8b", kind="sim", replicas=2, engine={})
    for status in ("done", "failed", "queued"):
        _experiment(status)
    _experiment("done", name="Three strategies, simulated", mode="twin", time_scale=1)
    matrix = Matrix.objects.create(name="Strategies on two loads", body={}, actor="otto")
    values = {"round_robin": 300.0, "cache_aware": 210.0, "adaptive_v1": 200.0}
    summary = {
        "values": {"all": {"ttft_p90_ms": values}},
        "best_or_tied": {"all": {"ttft_p90_ms": ["cache_aware", "adaptive_v1"]}},
    }
    for load in (1, 2):
        _experiment("done", mode="twin", time_scale=1, load_factor=load, matrix=matrix, summary=summary)


def _experiment(status: str, **changes: Any) -> None:
    arms = [arm_of(strategy) for strategy in ("round_robin", "cache_aware", "adaptive_v1")]
    fields = {"trace": "agentic-demo", "pool": "demo", "pacing": "timestamps", "load_factor": 1, "duration_s": 60}
    fields |= {"name": f"Three strategies, {status}", "time_scale": 10, **changes}
    experiment = Experiment.objects.create(**fields, seeds=[1], arms=arms, status=status, actor="otto")
    facts = {"instances": ["exp-0", "exp-1"], **(TWIN if experiment.mode == "twin" else {})}
    draw = random.Random(7)
    base = [draw.lognormvariate(6, 0.8) for _ in range(120)]
    for ordinal, arm in enumerate(arms):
        run = Run.objects.create(
            experiment=experiment, arm=arm["name"], seed=1, ordinal=ordinal, status=status, done=120, total=120,
            facts=facts, cause="worker lost" if status == "failed" else "", log="last line",
        )  # fmt: skip
        if experiment.mode == "twin":
            run.folder.mkdir(parents=True)
            use = {f"exp-{i}": {"usage": [i / 4, 0.9], "mean": 0.5, "peak": 0.9} for i in range(2)}
            run.kv_path.write_text(json.dumps({"bucket_s": 30, "instances": use}))
        elif status == "done":
            run.folder.mkdir(parents=True)
            gpu = {"name": "H200", "memory_bytes": 8, "at_s": [0.0, 5.0, 30.0], "use": [0.1, 0.2, 0.9]}
            gpu |= {"memory_used_bytes": [2, 4, 4], "mean": 0.4, "peak": 0.9}
            run.gpu_path.write_text(json.dumps({"gpus": {"gpu-1/0": gpu, "gpu-1/1": gpu}, "absent": {}}))
        if status != "queued":
            kinds = ("warm", "medium", "heavy")
            write_records(
                run, [record(i, ttft_ms=v * (1 - 0.1 * ordinal), trace_class=kinds[i % 3]) for i, v in enumerate(base)]
            )
