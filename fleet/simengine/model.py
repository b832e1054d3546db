"""The engine model of a simulated engine, built from its options."""

import math
from dataclasses import dataclass, replace
from typing import cast

from fleet.engine.dwdp.layout import LayoutError
from fleet.engine.dwdp.machine import GPUS
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.dwdp.servers import GenerationServer, Machine, TooLarge, dep_server, dwdp_server, generation_server
from fleet.engine.engine_model import EngineModel, Role, TransferModel
from fleet.engine.law import law_of
from fleet.engine.neuron_batches import BATCHING_OF_ROLE
from fleet.engine.power import limit_w
from fleet.engine.profiles import (
    MEMORY_USED,
    GpuMemory,
    Profile,
    UnknownProfile,
    kv_blocks,
    memory_of,
    profile,
    profile_by,
    read,
)
from fleet.engine.scheduler import VLLM, WHOLE_PROMPTS, Limits
from fleet.engine.tiers.devices import (
    DEVICES,
    DRAM,
    DRAM_FITTED,
    LAYER_PASS_S,
    TierDevice,
    on_drives,
    with_prp,
)
from fleet.engine.tiers.loading import paged
from fleet.engine.tiers.model import TierModel, TiersModel, WritePolicy
from fleet.engine.tiers.sizes import KvLayout, layout_of, metadata_bytes
from fleet.simengine.arguments import ALWAYS, DEP, DWDP, DWDP_SLICES, ONE_ENGINE, PRP, PUBLISHED, SimOptions
from router.contract.connectors import NEURON, NONE

CONTEXT_GPUS, GENERATION_GPUS = 4, 8  # GPUs per server, unless tp gives another number
PREFILL: Role = "prefill"


def served_by(options: SimOptions) -> Profile:
    """Return the user's profile, or else one by names. Raise UnknownProfile."""
    if options.profile:
        return profile_by(read(options.profile))
    ranks, dealt = options.data_parallel_group, options.expert_parallel
    return profile(options.gpu, options.model_profile, options.tp, dp=ranks, expert_parallel=dealt)


def model_of(options: SimOptions, role: str) -> EngineModel:
    """Return the model of one rank. Raise UnknownProfile."""
    if options.context_servers != ONE_ENGINE:
        return _of_server(options, role)
    of = served_by(options)
    size = options.block_size
    tiers = _tiers(options, of)
    blocks = options.kv_blocks or _beside_addresses(_blocks(options, of), size, tiers)
    return EngineModel(
        law=paged(law_of(of)) if tiers is not None and options.tier_law == PUBLISHED else law_of(of),
        kv_blocks=blocks,
        limits=_limits(options, role, is_async=of.is_async),
        window=min(options.max_model_len, blocks * size),  # a single request must always fit
        kv_events=True,
        role=cast(Role, role),
        connector="" if options.kv == NONE else options.kv,
        tiers=tiers,
        transfers=None if options.kv == NONE else _transfers(options, of.sizes.kv_bytes_per_token),
    )


def _blocks(options: SimOptions, of: Profile) -> int:
    steps = {"sequences": options.max_num_seqs, "step_tokens": options.max_num_batched_tokens}
    return kv_blocks(of, options.block_size, **steps)


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """The GPUs of one rank, by its law."""

    memory: GpuMemory
    limit_w: float | None  # combined power limit of the GPUs; None: their power draw is unknown


def simulated_gpus(options: SimOptions, role: str) -> SimulatedGpus:
    """Return the GPUs of one rank. Raise UnknownProfile."""
    size, blocks = options.block_size, options.kv_blocks
    if options.context_servers != ONE_ENGINE:
        return SimulatedGpus(_memory_of_server(options, role), None)
    of = served_by(options)
    watts = limit_w(of.gpu)
    steps = options.max_num_seqs, options.max_num_batched_tokens
    memory = memory_of(of, blocks or _blocks(options, of), size, *steps)
    return SimulatedGpus(memory, None if watts is None else watts * of.tp)


def _memory_of_server(options: SimOptions, role: str) -> GpuMemory:
    server = _server(options, role)
    tokens = options.kv_blocks * options.block_size if options.kv_blocks else server.kv_tokens(MEMORY_USED)
    of_kv = server.machine.moe.kv_bytes / server.gpus / server.machine.gpu.memory_bytes
    return GpuMemory(1 - server.kv_tokens(1.0) * of_kv, tokens * of_kv, 0.0)


def gpus_of(options: SimOptions, role: str) -> int:
    """Return the GPUs of an instance that is a context or a generation server."""
    return options.tp or (CONTEXT_GPUS if role == PREFILL else GENERATION_GPUS)


def context_ranks(options: SimOptions, role: str) -> int:
    """Return the number of GPUs in a DWDP group, each of which is an engine behind the instance's address; 1 without
    a group."""
    is_group = role == PREFILL and options.context_servers in (DWDP, DWDP_SLICES)
    return gpus_of(options, role) if is_group else 1


def _of_server(options: SimOptions, role: str) -> EngineModel:
    try:
        server = _server(options, role)
        tokens = server.kv_tokens(MEMORY_USED)
    except (LayoutError, TooLarge) as error:
        raise UnknownProfile(str(error)) from None
    size = options.block_size
    blocks = options.kv_blocks or int(tokens / size)
    batched = options.max_num_batched_tokens * server.ranks
    return EngineModel(
        law=server.law,
        kv_blocks=blocks,
        limits=Limits(size, options.max_num_seqs * server.ranks, batched, WHOLE_PROMPTS, ranks=server.ranks),
        window=min(options.max_model_len, blocks * size),
        kv_events=True,
        role=cast(Role, role),
        connector=options.kv,
        transfers=_transfers(options, server.machine.moe.kv_bytes),
    )


def machine_of(options: SimOptions) -> Machine:
    """Return the model and GPU of context and generation servers."""
    moe = MOES[options.context_model]
    return Machine(moe, GPUS[options.context_gpu].serving(moe))


def _server(options: SimOptions, role: str) -> GenerationServer:
    gpus, of = gpus_of(options, role), machine_of(options)
    if role != PREFILL:
        return generation_server(gpus, of)
    if options.context_servers == DEP:
        return dep_server(gpus, 0, of, options.context_hot_experts)
    return dwdp_server(gpus, sliced=options.context_servers == DWDP_SLICES, of=of)


def _limits(options: SimOptions, role: str, *, is_async: bool) -> Limits:
    batching = BATCHING_OF_ROLE[role] if options.kv == NEURON else VLLM
    return Limits(
        options.block_size,
        options.max_num_seqs,
        options.max_num_batched_tokens,
        batching,
        async_scheduling=is_async and batching == VLLM,
    )


def _tiers(options: SimOptions, served: Profile) -> TiersModel | None:
    sizes = {"dram": options.dram_gb, options.ssd_access: options.ssd_gb}
    layout = layout_of(served)
    tiers = tuple(TierModel(_device(name, options, layout), gb * 1e9) for name, gb in sizes.items() if gb)
    if not tiers:
        return None
    return TiersModel(
        layout=layout,
        tiers=tiers,
        write=cast(WritePolicy, options.tier_write),
        promote_hits=options.tier_promote_hits,
        prefetch=options.tier_prefetch,
        always_load=options.tier_load == ALWAYS,
        floor_s=LAYER_PASS_S if options.tier_law == PUBLISHED else 0.0,
        staging_bytes=(1 - MEMORY_USED) * served.peak.memory,
    )


def _device(name: str, options: SimOptions, layout: KvLayout) -> TierDevice:
    if name != DRAM.name:
        drives = on_drives(DEVICES[name], options.ssd_drives, options.ssd_read_gb_s * 1e9)
        return with_prp(drives, layout.object_bytes) if options.ssd_metadata == PRP else drives
    rate, setup_ms = options.dram_gb_per_s, options.dram_layer_ms
    memory = DRAM_FITTED if options.tier_law == PUBLISHED and not rate else DRAM
    return replace(
        memory,
        read_bytes_per_s=rate * 1e9 if rate else memory.read_bytes_per_s,
        layer_setup_s=memory.layer_setup_s if setup_ms is None else setup_ms / 1e3,
    )


def _beside_addresses(blocks: int, size: int, tiers: TiersModel | None) -> int:
    """Return what remains of the pool when its addresses for the drives are in GPU memory, too."""
    if tiers is None:
        return blocks
    block_bytes = tiers.layout.bytes(size)
    addresses = sum(metadata_bytes(tier.device.metadata, blocks * block_bytes) for tier in tiers.tiers)
    return blocks - math.ceil(addresses / block_bytes)


def _transfers(options: SimOptions, bytes_per_token: float) -> TransferModel:
    together = options.kv == NEURON  # its copies do not use the cores, so a computing sender is as fast
    return TransferModel(
        bytes_per_token=bytes_per_token,
        setup_s=options.kv_setup_ms / 1e3,
        idle_bytes_per_s=options.kv_gb_per_s * 1e9,
        busy_bytes_per_s=(options.kv_gb_per_s if together else options.kv_busy_gb_per_s) * 1e9,
        hold_s=options.kv_hold_s,
        connect_s=options.kv_connect_ms / 1e3,
        together=together,
        lend_s=options.kv_lend_s,
    )
