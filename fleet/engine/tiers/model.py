"""The tiers of one engine and their totals, as values."""

import math
from dataclasses import dataclass
from typing import Literal

from fleet.engine.tiers.devices import TierDevice
from fleet.engine.tiers.sizes import KvLayout

# When a block is written to a tier. through: after its prefill, or with the end of its answer; evict: when HBM evicts
# it, before its memory is reused; second_use: when it is used for the second time
WritePolicy = Literal["through", "evict", "second_use"]


@dataclass(frozen=True, slots=True)
class TierModel:
    device: TierDevice
    capacity_bytes: float  # capacity per instance, for KV


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersModel:
    layout: KvLayout
    tiers: tuple[TierModel, ...]  # fastest first
    write: WritePolicy = "through"
    promote_hits: int = 1  # hits below the first tier after which a block is copied into it; 0: never
    prefetch: bool = False  # True: blocks are read from the drive into host memory while a request waits
    always_load: bool = False  # True: load even tokens that could be computed faster
    floor_s: float = 0.0  # shortest time of a pass that loads by layers
    staging_bytes: float = math.inf  # GPU memory outside the KV pool, per GPU


@dataclass(frozen=True, slots=True)
class TierStats:
    """Totals of one tier since the start."""

    name: str
    capacity_bytes: float
    capacity_tokens: int
    held_tokens: int
    hit_tokens: int  # prompt tokens loaded
    queried_blocks: int  # blocks looked up here because no faster tier had them
    hit_blocks: int  # blocks found
    read_bytes: float  # bytes read by all GPUs of the instance
    written_bytes: float
    loads: int
    stores: int
    load_s: float  # sum of T_io over all loads
    write_s: float
    medium: str  # medium's name in KV events
    evicted_tokens: int
    wears: bool  # True: writes wear it out
    used_bytes: float = 0.0
    backlog_bytes: float = 0.0  # bytes waiting to be written, summed over all GPUs


@dataclass(frozen=True, slots=True)
class TiersStats:
    tiers: tuple[TierStats, ...]
    bubble_s: float  # time by which loads and writes have lengthened steps
    backlog_bytes: float  # bytes waiting to be written, per GPU
    backlog_most_bytes: float
    wasted_bytes: float  # bytes prefetched but never used
    declined_tokens: int  # stored tokens that were not loaded, because computing them was faster
    failed: int  # requests that ran out of GPU memory while loading
