"""An engine's load: as its metrics page says, and as the sample that its node writes each second. Pure."""

from typing import Any

from msgspec import Struct, structs

from router.contract.redis.codec import RedisValue


class EngineMetrics(Struct, frozen=True, kw_only=True):
    """One reading of a metrics page; None where the engine does not report a number. Totals only grow."""

    kv_usage: float | None = None  # 0–1 share of KV blocks
    kv_blocks: int | None = None
    block_size: int | None = None  # tokens
    running: float | None = None  # requests
    waiting: float | None = None  # requests
    prefix_queries_total: float | None = None  # tokens
    prefix_hits_total: float | None = None  # tokens
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    preemptions_total: float | None = None
    cached_by_source: dict[str, float] = {}  # tokens, totals
    prompt_by_source: dict[str, float] = {}  # tokens, totals
    transfers: dict[str, float] = {}  # of KV blocks since its start: n, seconds, bytes, failed
    tiers: dict[str, tuple[float, float]] = {}  # of a KV store: bytes used, bytes of capacity


class InstanceSample(EngineMetrics, RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:inst:<id>, written by the instance's node each second, expires."""

    id: str
    pool: str = ""
    epoch: int  # of the process that was sampled
    at: float  # Unix s
    hit_rate: float | None = None  # 0–1 over the last 60 s; None: no prompt was looked up
    transfer_bytes_per_s: float | None = None  # KV, over the last 60 s
    disk: tuple[int, int] | None = None  # bytes free and in total under its KV tier
    refused: dict[str, int] = {}  # reason → how often an answer, or a part of one, was refused in this epoch


def sample_of(metrics: EngineMetrics, **of_instance: Any) -> InstanceSample:
    return InstanceSample(**structs.asdict(metrics), **of_instance)
