"""Whether a model fits on the GPUs of a pool, before an instance is started. Pure but for the model's folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fleet.counted import counted, significant
from fleet.engine.profiles import ACTIVATION_BYTES, LEAST_KV_TOKENS, MEMORY_USED, TP_SIZES, UnknownProfile
from fleet.kinds.kind import GPU, Kind, Launch, TwinModel, check_engine, hardware_of, twin_model_of
from fleet.kinds.kv_size import sizes_of, weight_bytes
from fleet.kinds.options.option import build
from fleet.kinds.resources import NodeGpu

GB = 1e9
SHARES = ("gpu_memory_utilization", "mem_fraction_static")  # options with the share of GPU memory that is used


@dataclass(frozen=True, slots=True)
class MemoryFit:
    status: Literal["ready", "saturated", "failed", "unseen"]  # as a status is drawn
    word: str
    text: str


def memory_fit(
    kind: Kind, engine: Mapping[str, object], model: str, nodes: Mapping[str, Sequence[NodeGpu]]
) -> MemoryFit | None:
    """Return whether such an instance fits; None for a kind without GPUs, and while an option is wrong. `nodes`: the
    GPUs of each node that may run it."""
    if check_engine(kind, engine, "engine", model):
        return None
    spec = build(kind.spec, engine)
    if law := twin_model_of(kind, spec):
        return _by_law(law, kind, spec, model)
    return _by_sizes(kind, spec, model, nodes) if kind.device == GPU and kind.devices(spec, "both") else None


def _by_law(law: Callable[[Any, Launch], TwinModel], kind: Kind, spec: Any, model: str) -> MemoryFit:
    try:
        tokens = law(spec, Launch("pool-0", model, "127.0.0.1", {}, "python")).engine.kv_tokens
        gpus = hardware_of(kind, spec, "both").gpus
    except UnknownProfile as error:
        return MemoryFit("failed", "does not fit", f"{error}.")
    return _leaves(spec, tokens, f"on {counted(gpus, 'GPU')}")


def _by_sizes(kind: Kind, spec: Any, model: str, nodes: Mapping[str, Sequence[NodeGpu]]) -> MemoryFit:
    named = getattr(spec, "model", None) or model
    weights, kv = weight_bytes(named), sizes_of(named, getattr(spec, "dtype", "auto"))
    if not named:
        return MemoryFit("unseen", "not known", "Type the model: this line says then whether it fits on its GPUs.")
    if weights is None or kv is None:
        text = f"The sizes of {named} are those of its folder on this host, or of a known model that it is named after."
        return MemoryFit("unseen", "not known", text)
    size = f"{significant(weights / GB)} GB of weights"
    memory = {name: least for name, gpus in nodes.items() if (least := _least(gpus, kind.devices(spec, "both")))}
    if not memory:
        return MemoryFit(
            "unseen", "not known", f"{size}; no node reports {counted(kind.devices(spec, 'both'), 'GPU')}."
        )
    node = max(memory, key=lambda name: memory[name])

    def tokens(tp: int) -> int:
        free = _share(spec) * memory[node] - weights / tp - ACTIVATION_BYTES
        return int(free / (kv.bytes_per_token / tp))

    tp = getattr(spec, "tensor_parallel", 1)
    where = f"beside {size} on {tp} × {significant(memory[node] / GB)} GB of {node}"
    if tokens(tp) >= LEAST_KV_TOKENS:
        return _leaves(spec, tokens(tp), where)
    enough = next((each for each in TP_SIZES if each > tp and tokens(each) >= LEAST_KV_TOKENS), None)
    advice = f"; tensor parallel {enough} would do" if enough else ""
    return MemoryFit("failed", "does not fit", f"No room for {LEAST_KV_TOKENS:,} tokens of KV {where}{advice}.")


def _share(spec: Any) -> float:
    return next((share for name in SHARES if (share := getattr(spec, name, None))), MEMORY_USED)


def _least(gpus: Sequence[NodeGpu], count: int) -> float:
    """Return the memory of the smallest of the `count` largest GPUs; 0 if there are fewer."""
    known = sorted((gpu.memory_bytes or 0 for gpu in gpus), reverse=True)
    return known[count - 1] if len(known) >= count else 0


def _leaves(spec: Any, tokens: int, where: str) -> MemoryFit:
    longest = getattr(spec, "max_model_len", None) or 0
    if longest > tokens:
        text = f"KV for {tokens:,} tokens {where}, fewer than the longest request of {longest:,}."
        return MemoryFit("saturated", "is tight", text)
    return MemoryFit("ready", "fits", f"KV for {tokens:,} tokens {where}.")
