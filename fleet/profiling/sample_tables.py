"""The child process that reads the measured kernel tables: layouts in on standard input, sampled step times out.
Run it with an interpreter that has aiconfigurator-core (requirements-profiles.txt). The library takes 600 MB and a
second to import, so nothing else in Weir imports it. Only its supported facade is used
(`aiconfigurator_core.sdk.__all__`), plus the bundled model configurations, as files.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _spaced(*ranges: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(n for first, last, step in ranges for n in range(first, last, step))


# Dense points, and one more after each multiple of 256, where the tables have steps because another kernel is chosen.
NEW = sorted(
    {1, 2, 4, 8}
    | {*_spaced((16, 256, 8), (256, 512, 16), (512, 1024, 32), (1024, 2048, 64), (2048, 8192, 256))}
    | {*_spaced((264, 8192, 256))}
)
LONG = (8192, 12_288, 16_384)
BATCHES = (1, 2, 3, *_spaced((4, 32, 2), (32, 128, 8), (128, 256, 16), (256, 512, 32)), 512, 768, 1024)
BEFORE = (0, 2048, 8192, 32_768)
CONTEXTS = (256, 1024, 4096, 16_384)
# Shapes between the points that a profile stores, by which it is tested.
TRIED_NEW, TRIED_BEFORE = (20, 77, 155, 263, 300, 450, 580, 900, 1800, 3300, 7000), (0, 2000, 30_000)
TRIED_BATCHES, TRIED_CONTEXTS = (1, 5, 11, 19, 43, 77, 155, 290), (500, 2000, 10_000)
TRIED_MIXED = ((512, 8), (1024, 32), (2048, 64), (4096, 128))
MOST_KV_TOKENS = 2_000_000
# The MLA module (latent attention) was measured with each norm as a chain of small kernels, which no engine runs. Its
# rows for the B200 were measured again without the chain: 33 to 65 µs per layer less for up to 256 tokens, whatever the
# heads and the context. The GB200, which has the same chip, still has the older rows, so the difference between the two
# is the chain.
CHAINED, FUSED = "gb200", "b200_sxm"
# MiniMax-M2 normalizes the queries and the keys of all heads together, which the library does not count. In vLLM this
# takes four additional small kernels per layer and, over several GPUs, a reduction of two numbers per token. Each
# kernel costs what it does in the chain above.
NORM_KERNELS, KERNEL_MS = 4, 2.5e-3
NORM_BYTES = 8  # bytes per token


def main() -> None:
    """Answer one JSON object per line with another: {"error": …} if nothing is known."""
    with contextlib.redirect_stdout(sys.stderr):  # diverts the library's messages
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
    with tempfile.TemporaryDirectory() as folder:  # a local folder, since the library would look up a name on a hub
        for name, text in files.items():
            Path(folder, name).write_text(text)
        config = json.loads(files["config.json"])
        return _of_folder(folder, layout, config.get("text_config") or config) | {"config": config}


def _of_folder(folder: str, layout: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    """Sample the steps of a model folder. `text`: configuration of the language model."""
    from aiconfigurator_core.sdk import EngineHandle

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

    def compiled(gpu: str, gemm: str) -> Any:
        options = width | {"gemm_quant_mode": gemm or None}
        return EngineHandle.compile(folder, gpu, "vllm", backend_version="current", **options)

    engine = compiled(layout["gpu"], layout["gemm"])
    latent = bool(text.get("kv_lora_rank"))
    chained = latent and layout["gpu"] != FUSED
    if latent:
        steps = _latent_steps(engine, compiled, layout, chained=chained)
    else:
        steps = StepTables(engine, engine, norms_ms=lambda tokens: head_norms_ms(engine, text, tokens))
    prefill = [(n, c, steps.prefill_ms(n, c)) for n in (*NEW, *LONG) for c in BEFORE]
    decode = [(n, c, steps.decode_ms(n, c)) for n in BATCHES for c in CONTEXTS if _fits(n, c)]
    return {
        "prefill": prefill,
        "decode": decode,
        "tried": _tried(steps),
        **_bytes(folder, layout["gpu"], width),
        "measured": _measured(engine),
        "chained": chained,
        "engine": _version(layout["gpu"]),
        "library": importlib.metadata.version("aiconfigurator-core"),
    }


def _tried(steps: "StepTables") -> dict[str, Any]:
    """Return steps between the points of the tables, which show how well the points interpolate."""
    return {
        "prefill": [(n, c, steps.prefill_ms(n, c)) for n in TRIED_NEW for c in TRIED_BEFORE],
        "decode": [(n, c, steps.decode_ms(n, c)) for n in TRIED_BATCHES for c in TRIED_CONTEXTS if _fits(n, c)],
        "mixed": [(n, d, steps.mixed_ms(n, d)) for n, d in TRIED_MIXED],
    }


def _bytes(folder: str, gpu: str, width: dict[str, Any]) -> dict[str, float]:
    """Return the bytes of the weights and of a token's KV. The profile decides whether these fit."""
    from aiconfigurator_core.sdk import estimate_kv_cache

    share = {"memory_fraction_kind": "of_total", "memory_fraction_value": 0.9}
    unlimited = {"gpu_memory_capacity_bytes_override": 10**13}
    batch = {"max_num_tokens": 8192, "max_batch_size": 256}
    memory = estimate_kv_cache(folder, gpu, "vllm", "current", **batch, **share, **unlimited, **width)
    return {
        "weight_bytes": memory["memory_breakdown"]["weights_bytes"],
        "kv_bytes_per_token": memory["total_kv_size_bytes"] / memory["total_kv_size_tokens"],
    }


def _latent_steps(
    engine: Any, compiled: Callable[[str, str], Any], layout: dict[str, Any], *, chained: bool
) -> "StepTables":
    """Return the steps of latent attention. The module has no rows for plain FP8, for which other engines' tables
    would be substituted, so the published format is used."""
    gpu, plain = layout["gpu"], layout["gemm"] == "fp8"
    gemm = "" if plain else layout["gemm"]
    chain = (compiled(CHAINED, gemm), compiled(FUSED, gemm)) if chained else ()
    return StepTables(engine, compiled(gpu, gemm) if plain else engine, chain)


class StepTables:
    """Milliseconds of steps from the tables of an engine, with the latent attention of another engine, which may be the
    same.
    `chain` holds two engines that differ in the chain of kernels, the one with the chain first; empty if the attention
    has none. `norms_ms` is what the tables leave out, by the tokens of a step.
    """

    def __init__(
        self,
        engine: Any,
        attention: Any,
        chain: tuple[Any, ...] = (),
        norms_ms: Callable[[int], float] = lambda _tokens: 0.0,
    ) -> None:
        self._engine, self._attention, self._chain, self._norms_ms = engine, attention, chain, norms_ms

    def prefill_ms(self, new: int, before: int) -> float:
        step_ms: float = self._engine.predict_prefill_latency(1, new + before, before) + self._norms_ms(new)
        return step_ms + self._correction_ms(lambda engine: _prefill_attention_ms(engine, new, before))

    def decode_ms(self, sequences: int, context: int) -> float:
        step_ms: float = self._engine.predict_decode_latency(sequences, context) + self._norms_ms(sequences)
        return step_ms + self._correction_ms(lambda engine: _decode_attention_ms(engine, sequences, context))

    def mixed_ms(self, new: int, sequences: int) -> float:
        """Return the time of a step whose sequences have a context of `new` tokens each. The tables count two
        modules, each with its chain."""
        step_ms: float = self._engine.mixed_step_latency(new, sequences, new, 2) + self._norms_ms(new + sequences)
        step_ms += self._correction_ms(lambda engine: _prefill_attention_ms(engine, new, 0))
        return step_ms + self._correction_ms(lambda engine: _decode_attention_ms(engine, sequences, new))

    def _correction_ms(self, attention_ms: Callable[[Any], float]) -> float:
        """Return the correction, which never makes attention faster than it is without the chain."""
        own_ms = attention_ms(self._attention)
        correction_ms = 0.0 if self._attention is self._engine else own_ms - attention_ms(self._engine)
        if self._chain:
            chained_ms, fused_ms = map(attention_ms, self._chain)
            correction_ms -= max(0.0, min(chained_ms - fused_ms, own_ms - fused_ms))
        return correction_ms


def head_norms_ms(engine: Any, text: dict[str, Any], tokens: int) -> float:
    """Return the time of the norms. Their reduction takes as long as a reduction of equally many bytes of activations,
    which the library has measured.
    """
    if text.get("model_type") != "minimax_m2":
        return 0.0
    activations = max(1, math.ceil(tokens * NORM_BYTES / (2 * text["hidden_size"])))
    operators = engine.decode_step_per_op(activations, 1, 2)
    reduction_ms = sum(one[1] for one in operators if one[0] == "generation_embedding_ar")
    return float(text["num_hidden_layers"] * (reduction_ms + NORM_KERNELS * KERNEL_MS))


def _prefill_attention_ms(engine: Any, new: int, before: int) -> float:
    prefill, _ = engine.run_static_per_op(batch_size=1, isl=new + before, osl=2, prefix=before, mode="static_ctx")
    return float(sum(one[1] for one in prefill if one[0] == "context_mla_block"))


def _decode_attention_ms(engine: Any, sequences: int, context: int) -> float:
    operators = engine.decode_step_per_op(sequences, context, 2)
    return float(sum(one[1] for one in operators if one[0] == "generation_mla_block"))


def _fits(batch: int, context: int) -> bool:
    return batch * context <= MOST_KV_TOKENS


def _measured(engine: Any) -> float:
    """Return the share of the time of three typical steps that was measured at that shape or between two measured
    shapes."""
    steps = [engine.decode_step_per_op(batch, 1024, 2) for batch in (8, 64)]
    steps += engine.mixed_step_breakdown_per_op(2048, 16, 1024, 2)
    times = [(one[1], one[3]) for step in steps for one in step]
    return float(sum(time for time, source in times if source == "silicon") / sum(time for time, _ in times))


def _files(layout: dict[str, Any]) -> dict[str, str]:
    """Return the model's configuration by file name: the given one, or the one that the library bundles."""
    if layout["config"]:
        return {"config.json": json.dumps(layout["config"])}
    spec = importlib.util.find_spec("aiconfigurator_core")
    bundled = Path(spec.origin if spec and spec.origin else "").parent / "model_configs"
    stem = layout["model"].replace("/", "--")
    paths = {name: bundled / f"{stem}_{name}" for name in ("config.json", "hf_quant_config.json")}
    return {name: path.read_text() for name, path in paths.items() if path.is_file()}


def _version(gpu: str) -> str:
    """Return the version of vLLM, whose kernels were measured."""
    import yaml

    spec = importlib.util.find_spec("aiconfigurator_core")
    file = Path(spec.origin if spec and spec.origin else "").parent / "systems" / "query_versions.yaml"
    known = yaml.safe_load(file.read_text())
    own = (known.get("overrides") or {}).get(gpu, {}).get("vllm")
    return str((own or known["defaults"]["vllm"])["current"])


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
