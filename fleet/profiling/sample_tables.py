"""The child process that reads the measured kernel tables: layouts in on standard input, sampled step times out.

Run with an interpreter that has aiconfigurator-core (requirements-profiles.txt). It takes 600 MB and a second to
import, so nothing else of Weir imports it. Only its supported facade is used (`aiconfigurator_core.sdk.__all__`), and
the bundled configurations of models, as files.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def _spaced(*ranges: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(n for first, last, step in ranges for n in range(first, last, step))


# Dense, and once more after each multiple of 256: there the tables have steps, as another kernel is chosen
NEW = sorted(
    {1, 2, 4, 8}
    | {*_spaced((16, 256, 8), (256, 512, 16), (512, 1024, 32), (1024, 2048, 64), (2048, 8192, 256))}
    | {*_spaced((264, 8192, 256))}
)
LONG = (8192, 12_288, 16_384)
BATCHES = (1, 2, 3, *_spaced((4, 32, 2), (32, 128, 8), (128, 256, 16), (256, 512, 32)), 512, 768, 1024)
BEFORE = (0, 2048, 8192, 32_768)
CONTEXTS = (256, 1024, 4096, 16_384)
# Between the points that a profile stores: what it is tried on
TRIED_NEW, TRIED_BEFORE = (20, 77, 155, 263, 300, 450, 580, 900, 1800, 3300, 7000), (0, 2000, 30_000)
TRIED_BATCHES, TRIED_CONTEXTS = (1, 5, 11, 19, 43, 77, 155, 290), (500, 2000, 10_000)
TRIED_MIXED = ((512, 8), (1024, 32), (2048, 64), (4096, 128))
MOST_KV_TOKENS = 2_000_000


def main() -> None:
    """One JSON object a line, in and out: {"error": …} where nothing is known."""
    with contextlib.redirect_stdout(sys.stderr):  # the library's words
        answers = [_answer(json.loads(line)) for line in sys.stdin]
    for answer in answers:
        print(json.dumps(answer))


def _answer(layout: dict[str, Any]) -> dict[str, Any]:
    try:
        return _sampled(layout)
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:600]}


def _sampled(layout: dict[str, Any]) -> dict[str, Any]:
    files = _files(layout)
    if "config.json" not in files:
        raise LookupError(f"the library has no configuration of {layout['model']}: give its config.json")
    with tempfile.TemporaryDirectory() as folder:  # of a name the library would ask a hub
        for name, text in files.items():
            Path(folder, name).write_text(text)
        return _of_folder(folder, layout) | {"config": json.loads(files["config.json"])}


def _of_folder(folder: str, layout: dict[str, Any]) -> dict[str, Any]:
    from aiconfigurator_core.sdk import EngineHandle, estimate_kv_cache

    tp, dp, ep = layout["tp"], layout["dp"], layout["ep"]
    width = {
        "tp_size": tp,
        "attention_dp_size": dp,
        "moe_tp_size": tp * dp // ep,
        "moe_ep_size": ep,
        "gemm_quant_mode": layout["gemm"] or None,
        "moe_quant_mode": layout["moe"] or None,
        "kvcache_quant_mode": layout["kv"] or None,
    }
    where = (folder, layout["gpu"], "vllm")
    engine = EngineHandle.compile(*where, backend_version="current", **width)
    memory = estimate_kv_cache(
        *where,
        "current",
        max_num_tokens=8192,
        max_batch_size=256,
        memory_fraction_kind="of_total",
        memory_fraction_value=0.9,
        gpu_memory_capacity_bytes_override=10**13,  # whether it fits is decided by the profile
        **width,
    )
    prefill = [(n, c, engine.predict_prefill_latency(1, n + c, c)) for n in (*NEW, *LONG) for c in BEFORE]
    decode = [(n, c, engine.predict_decode_latency(n, c)) for n in BATCHES for c in CONTEXTS if _fits(n, c)]
    return {
        "prefill": prefill,
        "decode": decode,
        "tried": {
            "prefill": [(n, c, engine.predict_prefill_latency(1, n + c, c)) for n in TRIED_NEW for c in TRIED_BEFORE],
            "decode": [
                (n, c, engine.predict_decode_latency(n, c))
                for n in TRIED_BATCHES
                for c in TRIED_CONTEXTS
                if _fits(n, c)
            ],
            "mixed": [(n, d, engine.mixed_step_latency(n, d, n, 2)) for n, d in TRIED_MIXED],
        },
        "weight_bytes": memory["memory_breakdown"]["weights_bytes"],
        "kv_bytes_per_token": memory["total_kv_size_bytes"] / memory["total_kv_size_tokens"],
        "measured": _measured(engine),
        "engine": _version(layout["gpu"]),
        "library": importlib.metadata.version("aiconfigurator-core"),
    }


def _fits(batch: int, context: int) -> bool:
    return batch * context <= MOST_KV_TOKENS


def _measured(engine: Any) -> float:
    """Share of the time of three typical steps that was measured at that shape or between two measured ones."""
    steps = [engine.decode_step_per_op(batch, 1024, 2) for batch in (8, 64)]
    steps += engine.mixed_step_breakdown_per_op(2048, 16, 1024, 2)
    times = [(one[1], one[3]) for step in steps for one in step]
    return float(sum(time for time, source in times if source == "silicon") / sum(time for time, _ in times))


def _files(layout: dict[str, Any]) -> dict[str, str]:
    """The model's configuration by file name: as given, or as the library bundles it."""
    if layout["config"]:
        return {"config.json": json.dumps(layout["config"])}
    spec = importlib.util.find_spec("aiconfigurator_core")
    bundled = Path(spec.origin if spec and spec.origin else "").parent / "model_configs"
    stem = layout["model"].replace("/", "--")
    paths = {name: bundled / f"{stem}_{name}" for name in ("config.json", "hf_quant_config.json")}
    return {name: path.read_text() for name, path in paths.items() if path.is_file()}


def _version(gpu: str) -> str:
    """Of vLLM, whose kernels were measured."""
    import yaml

    spec = importlib.util.find_spec("aiconfigurator_core")
    file = Path(spec.origin if spec and spec.origin else "").parent / "systems" / "query_versions.yaml"
    known = yaml.safe_load(file.read_text())
    own = (known.get("overrides") or {}).get(gpu, {}).get("vllm")
    return str((own or known["defaults"]["vllm"])["current"])


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
