"""The options that determine how a simulated engine computes, and the engine model made from them."""

from dataclasses import dataclass
from typing import cast

from fleet.engine.engine_model import EngineModel, Role, TransferModel
from fleet.engine.law import law_of
from fleet.engine.neuron_batches import BATCHING_OF_ROLE
from fleet.engine.profiles import kv_blocks, profile
from fleet.engine.scheduler import VLLM, Limits
from router.contract.connectors import NEURON, NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    gpu: str
    model_profile: str
    tp: int | None
    kv_blocks: int | None
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv: str
    kv_setup_ms: float
    kv_gb_per_s: float
    kv_busy_gb_per_s: float
    kv_hold_s: float
    kv_connect_ms: float


def model_of(options: SimOptions, role: str) -> EngineModel:
    """Raises UnknownProfile."""
    served = profile(options.gpu, options.model_profile, options.tp)
    size = options.block_size
    blocks = options.kv_blocks or kv_blocks(served, size)
    return EngineModel(
        law=law_of(served),
        kv_blocks=blocks,
        limits=_limits(options, role, ahead=served.is_async),
        window=min(options.max_model_len, blocks * size),  # one request must always fit
        kv_events=True,
        role=cast(Role, role),
        connector="" if options.kv == NONE else options.kv,
        transfers=None if options.kv == NONE else _transfers(options, served.sizes.kv_bytes_per_token),
    )


def _limits(options: SimOptions, role: str, *, ahead: bool) -> Limits:
    batching = BATCHING_OF_ROLE[role] if options.kv == NEURON else VLLM
    return Limits(
        options.block_size,
        options.max_num_seqs,
        options.max_num_batched_tokens,
        batching,
        async_scheduling=ahead and batching == VLLM,
    )


def _transfers(options: SimOptions, bytes_per_token: float) -> TransferModel:
    together = options.kv == NEURON  # its copies do not use the cores, so a sender that computes is as fast
    return TransferModel(
        bytes_per_token=bytes_per_token,
        setup_s=options.kv_setup_ms / 1e3,
        idle_bytes_per_s=options.kv_gb_per_s * 1e9,
        busy_bytes_per_s=(options.kv_gb_per_s if together else options.kv_busy_gb_per_s) * 1e9,
        hold_s=options.kv_hold_s,
        connect_s=options.kv_connect_ms / 1e3,
        together=together,
    )
