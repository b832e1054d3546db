"""Limits of an engine's KV cache and scheduler, from its report or from its options. Pure."""

from dataclasses import dataclass
from typing import Any

from fleet.calibration.engine_facts import EngineFacts
from fleet.engine.profiles import ASYNC_SINCE

# Defaults of vLLM's API server: sequences, batched tokens (vllm/engine/arg_utils.py, 0.2x and 0.3x; on GPUs with 70 to
# 160 GB, such as H100 and H200).
_CPU = (128, 2048)  # per CPU worker
_GPU = (1024, 8192)
_OTHER = (256, 8192)
WINDOW = 8192  # tokens; used if neither the engine nor its options state a window


class NoCache(Exception):
    """The engine does not report its number of KV blocks."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    kv_blocks: int
    block_size: int  # tokens per block
    max_num_seqs: int
    max_num_batched_tokens: int
    window: int  # most tokens of prompt and answer together
    async_scheduling: bool = True  # True if steps are planned ahead; a fit to traffic finds this out by itself


def limits_of(spec: Any, facts: EngineFacts) -> EngineLimits:
    """Return the engine's limits. `spec`: options of its kind. Raise NoCache."""
    blocks, size = facts.kv_blocks, facts.block_size
    if not blocks or not size:
        raise NoCache("the engine's metrics do not report its number of KV blocks, which the twin needs")
    sequences, batched = _defaults(spec)
    window = facts.window or getattr(spec, "max_model_len", None) or WINDOW
    return EngineLimits(
        kv_blocks=blocks,
        block_size=size,
        max_num_seqs=facts.max_num_seqs or getattr(spec, "max_num_seqs", None) or sequences,
        max_num_batched_tokens=facts.max_num_batched_tokens or getattr(spec, "max_num_batched_tokens", None) or batched,
        window=min(window, blocks * size),
        async_scheduling=_plans_ahead(facts),
    )


def _plans_ahead(facts: EngineFacts) -> bool:
    if facts.async_scheduling is not None:
        return facts.async_scheduling
    return facts.version is None or facts.version >= ASYNC_SINCE


def _defaults(spec: Any) -> tuple[int, int]:
    device = getattr(spec, "device", None)
    if device == "cpu":
        return _CPU[0] * spec.tensor_parallel, _CPU[1] * spec.tensor_parallel
    return _GPU if device == "cuda" else _OTHER
