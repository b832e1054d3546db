"""An engine's load, read from its metrics page, and the sample that its node writes every second. Pure."""

from typing import Any

from msgspec import Struct, structs

from router.contract.redis.codec import RedisValue


class TierSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One KV tier below GPU memory; None where the engine does not report a number. Totals only grow."""

    used_bytes: float | None = None
    capacity_bytes: float | None = None
    read_bytes_total: float | None = None  # bytes read from the tier on their way to the GPU
    read_s_total: float | None = None
    written_bytes_total: float | None = None
    write_s_total: float | None = None
    queries_total: float | None = None  # queries in the engine's unit: chunks, objects or tokens
    hits_total: float | None = None  # hits among the queries
    failed_total: float | None = None  # failed transfers and allocations
    backlog: float | None = None  # write jobs in progress
    backlog_bytes: float | None = None  # bytes that wait to be written
    read_bytes_per_s: float | None = None  # over the last 60 s, like the next two
    written_bytes_per_s: float | None = None
    hit_rate: float | None = None  # 0–1
    used_tokens: float | None = None  # set if the engine does not report bytes
    capacity_tokens: float | None = None
    page: str = ""  # URL of a separate server's page, which engines may share; empty: the engine's own page

    @property
    def read_speed(self) -> float | None:
        """Return bytes per second of reading time, since the start."""
        return self.read_bytes_total / self.read_s_total if self.read_bytes_total and self.read_s_total else None

    @property
    def write_speed(self) -> float | None:
        return (
            self.written_bytes_total / self.write_s_total if self.written_bytes_total and self.write_s_total else None
        )


class RankSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One data-parallel rank; None where the engine does not report a number. Totals only grow."""

    kv_usage: float | None = None  # 0–1 share of KV blocks
    running: float | None = None  # requests
    waiting: float | None = None  # requests
    prefix_queries_total: float | None = None  # tokens
    prefix_hits_total: float | None = None  # tokens
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    deferred: float | None = None  # waiting requests that more capacity would not start


class GpuSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPUs of an instance; None where nothing reports a number."""

    use: float | None = None  # 0–1, mean share of recent time for which they computed
    memory: float | None = None  # 0–1 share in use
    power_w: float | None = None  # sum over the GPUs
    simulated: bool = False  # True: figures follow the law of a simulated engine


class EngineMetrics(Struct, frozen=True, kw_only=True):
    """One reading of a metrics page; None where the engine does not report a number. Totals only grow."""

    kv_usage: float | None = None  # 0–1 share of KV blocks
    kv_blocks: int | None = None  # blocks of one rank
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
    transfers: dict[str, float] = {}  # KV transfers since the start: n, seconds, bytes, failed
    tiers: dict[str, tuple[float, float]] = {}  # bytes used and capacity; for readers that do not know kv_tiers
    kv_tiers: dict[str, TierSample] = {}  # host, disk, remote, or as the engine names it
    busy_s_total: float | None = None  # seconds for which a simulated engine's GPU computed
    gpu_memory: float | None = None  # 0–1 share that a simulated engine holds
    gpu_energy_j_total: float | None = None  # energy of a simulated engine's GPUs, on the wall clock
    ranks: dict[str, RankSample] = {}  # by number; empty for a single rank
    # Waiting requests that more capacity would not start, as they wait for KV or an adapter
    deferred: float | None = None
    rejected_total: float | None = None  # requests refused because its queue was full
    uncached: bool = False  # True if it never reuses a prefix of an earlier prompt


class InstanceSample(EngineMetrics, RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:inst:<id>, written by the instance's node every second, expires."""

    id: str
    pool: str = ""
    epoch: int  # epoch of the sampled process
    at: float  # Unix s
    hit_rate: float | None = None  # 0–1 over the last 60 s; None: there were no prompts
    transfer_bytes_per_s: float | None = None  # KV, over the last 60 s
    disk: tuple[int, int] | None = None  # free and total bytes of the disk that holds its KV tier
    models: dict[str, int | None] = {}  # listed models with their max_model_len; empty if unknown
    gpu: GpuSample | None = None  # None: GPU figures are not reported
    refused: dict[str, int] = {}  # reason → number of refused answers or parts in this epoch


def queued(reading: EngineMetrics | RankSample) -> float:
    """Return the number of requests that wait for capacity."""
    return max(0.0, (reading.waiting or 0.0) - (reading.deferred or 0.0))


def sample_of(metrics: EngineMetrics, **of_instance: Any) -> InstanceSample:
    return InstanceSample(**structs.asdict(metrics), **of_instance)
