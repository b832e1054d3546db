"""Checks whether a model fits on the GPUs of a pool, before an instance is started. Pure except for reading the model's
folder."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fleet.counted import counted, significant
from fleet.engine.profiles import (
    LEAST_KV_TOKENS,
    MEMORY_USED,
    SEQUENCES,
    TP_SIZES,
    VOCABULARY,
    NoRoom,
    UnknownProfile,
    kept_bytes,
)
from fleet.kinds.kind import GPU, Kind, Launch, TwinModel, check_engine, hardware_of, twin_model_of
from fleet.kinds.kv_size import is_moe, sizes_of, weight_bytes, words_of
from fleet.kinds.options.option import build
from fleet.kinds.resources import NodeGpu

GB = 1e9
SHARES = ("gpu_memory_utilization", "mem_fraction_static")  # options for the share of GPU memory to use
LONGEST = ("max_model_len", "context_length", "max_seq_len")  # options for the longest request
# Arguments, and a number format, that change the size of the weights on a GPU
_RESIZING = re.compile(r"-(pp\d*|q)|--(pp|pp-size|pipeline-parallel-size|quantization|torchao-config|.*offload.*)")
FLOAT32 = ("float32", "float")


@dataclass(frozen=True, slots=True)
class MemoryFit:
    status: Literal["ready", "saturated", "failed", "unseen"]  # term of the status vocabulary, for its shape
    word: str
    text: str


def memory_fit(
    kind: Kind, engine: Mapping[str, object], model: str, nodes: Mapping[str, Sequence[NodeGpu]]
) -> MemoryFit | None:
    """Return whether an instance with these options fits; None for a kind without GPUs, and while an option is wrong.
    `nodes` has the GPUs of each node that may run it.
    """
    if check_engine(kind, engine, "engine", model):
        return None
    spec, unknown = build(kind.spec, engine), ""
    if law := twin_model_of(kind, spec):
        try:
            return _by_law(law, kind, spec, model)
        except NoRoom as error:
            return MemoryFit("failed", "does not fit", f"{error}.")
        except UnknownProfile as error:
            unknown = f"{error}."
    if kind.device == GPU and kind.devices(spec, "both"):
        return _by_sizes(kind, spec, model, nodes)
    return MemoryFit("unseen", "not known", unknown) if unknown else None


def _by_law(law: Callable[[Any, Launch], TwinModel], kind: Kind, spec: Any, model: str) -> MemoryFit:
    tokens = law(spec, Launch("pool-0", model, "127.0.0.1", {}, "python")).engine.kv_tokens
    return _leaves(spec, tokens, f"on {counted(hardware_of(kind, spec, 'both').gpus, 'GPU')}")


def _by_sizes(kind: Kind, spec: Any, model: str, nodes: Mapping[str, Sequence[NodeGpu]]) -> MemoryFit:
    named = getattr(spec, "model", None) or model
    dtype = getattr(spec, "dtype", "auto")
    weights, kv = weight_bytes(named), sizes_of(named, dtype, spec.arguments)
    if not named:
        return MemoryFit("unseen", "not known", "Type the model: this line says then whether it fits on its GPUs.")
    if weights is None or kv is None:
        text = f"The sizes of {named} are those of its folder on this host, or of a known model that it is named after."
        return MemoryFit("unseen", "not known", text)
    if resizing := _resizing(spec, dtype):
        return MemoryFit("unseen", "not known", f"The size of the weights on a GPU with {resizing} is not known here.")
    size = f"{significant(weights / GB)} GB of weights"
    memory = {name: least for name, gpus in nodes.items() if (least := _least(gpus, kind.devices(spec, "both")))}
    if not memory:
        return MemoryFit(
            "unseen", "not known", f"{size}; no node reports {counted(kind.devices(spec, 'both'), 'GPU')}."
        )
    node = max(memory, key=lambda name: memory[name])

    sequences = getattr(spec, "max_num_seqs", None) or SEQUENCES

    def tokens(tp: int) -> int:
        kept = kept_bytes(VOCABULARY, kv.layers, tp, has_experts=is_moe(named), sequences=sequences)
        return int(_free(spec, memory[node], weights / tp + kept) / (kv.bytes_per_token / tp))

    tp = getattr(spec, "tensor_parallel", 1)
    where = f"beside {size} on {tp} × {significant(memory[node] / GB)} GB of {node}"
    if tokens(tp) >= LEAST_KV_TOKENS:
        return _leaves(spec, tokens(tp), where)
    enough = next((each for each in TP_SIZES if each > tp and tokens(each) >= LEAST_KV_TOKENS), None)
    advice = f"; tensor parallel {enough} would do" if enough else ""
    return MemoryFit("failed", "does not fit", f"No room for {LEAST_KV_TOKENS:,} tokens of KV {where}{advice}.")


def _resizing(spec: Any, dtype: str) -> str:
    """Return the argument or number format that changes the size of the weights; empty if there is none."""
    named = next((word for word in words_of(spec.arguments) if _RESIZING.fullmatch(word)), "")
    return named or (f"dtype {dtype}" if dtype in FLOAT32 else "")


def _free(spec: Any, memory: float, taken: float) -> float:
    """Return the memory for KV: a share of the remainder, or the remainder of a share of all memory."""
    if of_left := getattr(spec, "free_gpu_memory_fraction", None):
        return float(of_left * (memory - taken))
    return next((share for name in SHARES if (share := getattr(spec, name, None))), MEMORY_USED) * memory - taken


def _least(gpus: Sequence[NodeGpu], count: int) -> float:
    """Return the memory of the smallest of the `count` largest GPUs; 0 if there are fewer."""
    known = sorted((gpu.memory_bytes or 0 for gpu in gpus), reverse=True)
    return known[count - 1] if len(known) >= count else 0


def _leaves(spec: Any, tokens: int, where: str) -> MemoryFit:
    longest = next((length for name in LONGEST if (length := getattr(spec, name, None))), 0)
    if longest > tokens:
        text = f"KV for {tokens:,} tokens {where}, fewer than the longest request of {longest:,}."
        return MemoryFit("saturated", "is tight", text)
    return MemoryFit("ready", "fits", f"KV for {tokens:,} tokens {where}.")
