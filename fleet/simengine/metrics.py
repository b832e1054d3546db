"""Renders /metrics with vLLM's names. Times are virtual: `weir_sim_time_scale` is the factor to the wall clock."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from fleet.engine.engine import Stats, StepResult
from fleet.engine.power import Draws, at_limit_s
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.model import TiersStats, TierStats
from fleet.simengine.model import SimulatedGpus
from router.contract.metrics.metrics_page import Histogram

LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
INTER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
TRANSFER_BYTES = tuple(2.0 ** (10 + power) for power in range(1, 25, 2))
FEW = (1, 2, 5, 10, 20)
INTERRUPTIONS = (0, 1, 2, 5, 10, 20, 50, 100)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
SOURCE_OF = {"CPU": "host", "DISK": "disk"}
REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Values that the page shows in addition to its own counters."""

    stats: Stats
    now_s: float  # virtual
    lag_s: float
    draws: Draws
    asleep: Collection[str] = ()  # parts of GpuMemory that sleep mode has freed


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that are constant while the process lives."""

    model: str
    block_size: int
    blocks: int
    time_scale: float
    window: int  # tokens
    caches_prefixes: bool = True
    media: tuple[str, ...] = ()  # media of its tiers below the GPU, as in KV events
    rank: int = 0  # data-parallel rank in its group
    pulls_as: str = ""  # value of `source` for transferred KV in counters; empty: no connector
    gpus: SimulatedGpus | None = None


class Metrics:
    def __init__(self, about: EngineInfo) -> None:
        self._about = about
        self._labels = f'model_name="{_escaped(about.model)}",engine="{about.rank}"'
        lengths = _one_two_five(about.window)
        self._histograms = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN_S),
            "inter_token_latency_seconds": Histogram(INTER_TOKEN_S),
            "request_time_per_output_token_seconds": Histogram(INTER_TOKEN_S),
            "e2e_request_latency_seconds": Histogram(LATENCY_S),
            "request_queue_time_seconds": Histogram(LATENCY_S),
            "request_inference_time_seconds": Histogram(LATENCY_S),
            "request_prefill_time_seconds": Histogram(LATENCY_S),
            "request_decode_time_seconds": Histogram(LATENCY_S),
            "iteration_tokens_total": Histogram(STEP_TOKENS),
            "request_prompt_tokens": Histogram(lengths),
            "request_generation_tokens": Histogram(lengths),
            "request_max_num_generation_tokens": Histogram(lengths),
            "request_params_max_tokens": Histogram(lengths),
            "request_params_n": Histogram(FEW),
            "request_num_preemptions": Histogram(PREEMPTIONS),
            "request_prefill_kv_computed_tokens": Histogram(lengths),
        }
        self._transfers = {
            "nixl_xfer_time_seconds": Histogram(TRANSFER_S),
            "nixl_bytes_transferred": Histogram(TRANSFER_BYTES),
        }
        self._sim_histograms = {
            "time_to_second_token_seconds": Histogram(FIRST_TOKEN_S),
            "request_interruptions": Histogram(INTERRUPTIONS),  # decode steps shared with another request's prefill
        }
        self._failed_transfers = 0
        self._pulled_tokens = 0
        self._below_tokens = Counter[str]()  # tokens loaded from tiers below the GPU
        self._success = dict.fromkeys(REASONS, 0)
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generation_tokens = 0
        self._computed_s = 0.0  # virtual

    def observe(self, results: Iterable[StepResult]) -> None:
        for result in results:
            emitted = result.steps * len(result.emitted)
            self._generation_tokens += emitted
            self._computed_s += result.duration_s
            self._histograms["iteration_tokens_total"].observe(result.scheduled, result.steps)
            following = emitted - len(result.first) - len(result.resumed)
            if following:
                self._histograms["inter_token_latency_seconds"].observe(result.duration_s / result.steps, following)
            for _, gap_s in result.resumed:
                self._histograms["inter_token_latency_seconds"].observe(gap_s)
            for request in result.first:
                self._first_token(request)

    def finished(self, request: EngineRequest, reason: str, *, max_tokens: int, n: int) -> None:
        """Count a completed request."""
        self._success[reason] += 1
        inference_s = request.finished_s - request.scheduled_s
        decode_s = request.finished_s - request.first_token_s
        values = {
            "e2e_request_latency_seconds": request.finished_s - request.arrived_s,
            "request_queue_time_seconds": request.scheduled_s - request.arrived_s,
            "request_inference_time_seconds": inference_s,
            "request_prefill_time_seconds": inference_s - decode_s,
            "request_decode_time_seconds": decode_s,
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.generated,
            "request_max_num_generation_tokens": request.generated,
            "request_params_max_tokens": max_tokens,
            "request_params_n": n,
            "request_num_preemptions": request.preemptions,
            "request_prefill_kv_computed_tokens": request.prompt_tokens - request.cached_tokens,
        }
        for name, value in values.items():
            self._histograms[name].observe(value)
        self._sim_histograms["request_interruptions"].observe(request.interruptions)
        if request.generated > 1:
            self._sim_histograms["time_to_second_token_seconds"].observe(request.second_token_s - request.arrived_s)
            mean_s = decode_s / (request.generated - 1)
            self._histograms["request_time_per_output_token_seconds"].observe(mean_s)

    def transferred(self, seconds: float, size: int) -> None:
        self._transfers["nixl_xfer_time_seconds"].observe(seconds)
        self._transfers["nixl_bytes_transferred"].observe(size)

    def transfer_failed(self) -> None:
        self._failed_transfers += 1

    def errored(self) -> None:
        self._success["error"] += 1

    def aborted(self) -> None:
        self._success["abort"] += 1

    def page(self, read: EngineSnapshot) -> bytes:
        stats = read.stats
        lines: list[str] = []
        self._gauges(lines, stats, read.lag_s)
        self._counters(lines, stats)
        if self._about.gpus is not None:
            self._gpus(lines, self._about.gpus, read)
        for name, histogram in (self._histograms | (self._transfers if self._about.pulls_as else {})).items():
            lines += [f"# TYPE vllm:{name} histogram", *histogram_lines(f"vllm:{name}", self._labels, histogram)]
        if stats.tiers is not None:
            self._tiers(lines, stats.tiers)
        for name, histogram in self._sim_histograms.items():
            full = f"weir_sim_{name}"
            lines += [f"# TYPE {full} histogram", *histogram_lines(full, self._labels, histogram)]
        return ("\n".join(lines) + "\n").encode()

    def _first_token(self, request: EngineRequest) -> None:
        self._histograms["time_to_first_token_seconds"].observe(request.first_token_s - request.arrived_s)
        self._prompt_tokens += request.prompt_tokens
        self._cached_tokens += request.cached_tokens
        self._pulled_tokens += request.pulled_tokens
        for medium, tokens in zip(self._about.media, request.tier_tokens, strict=False):
            self._below_tokens[SOURCE_OF[medium]] += tokens

    def _gauges(self, lines: list[str], stats: Stats, lag_s: float) -> None:
        labels, about = self._labels, self._about
        for name, value in (
            ("vllm:num_requests_running", stats.running),
            ("vllm:num_requests_waiting", stats.waiting),
            ("vllm:kv_cache_usage_perc", stats.kv_usage),
            ("weir_sim_transferring", stats.transferring),
            ("weir_sim_time_scale", about.time_scale),
            ("weir_sim_lag_seconds", lag_s),
        ):
            lines += [f"# TYPE {name} gauge", f"{name}{{{labels}}} {float(value)!r}"]
        caching = f'block_size="{about.block_size}",enable_prefix_caching="{about.caches_prefixes}"'
        config = f'{caching},num_gpu_blocks="{about.blocks}"'
        name = "vllm:cache_config_info"
        lines += [f"# TYPE {name} gauge", f'{name}{{{config},cache_dtype="auto",engine="{about.rank}"}} 1.0']

    def _counters(self, lines: list[str], stats: Stats) -> None:
        computed = self._prompt_tokens - self._cached_tokens
        for name, value in (
            ("prefix_cache_queries", stats.cache_queries),
            ("prefix_cache_hits", stats.cache_hits),
            ("external_prefix_cache_queries", stats.pull_queries),
            ("external_prefix_cache_hits", stats.pull_hits),
            ("nixl_num_failed_transfers", self._failed_transfers),
            ("num_preemptions", stats.preemptions),
            ("prompt_tokens", self._prompt_tokens),
            ("prompt_tokens_cached", self._cached_tokens),
            ("generation_tokens", self._generation_tokens),
        ):
            lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{self._labels}}} {float(value)!r}"]
        name, busy_s = "weir_sim_busy_seconds_total", self._computed_s / self._about.time_scale
        lines += [f"# TYPE {name} counter", f"{name}{{{self._labels}}} {busy_s!r}"]
        below = self._below_tokens
        external = self._pulled_tokens + sum(below.values())
        sources = dict(zip(SOURCES, (computed, self._cached_tokens - external, external), strict=True))
        tiers = dict.fromkeys(TIERS, 0) | {"device": stats.cache_hits} | below
        if self._about.pulls_as:
            tiers[self._about.pulls_as] += self._pulled_tokens
        self._labelled(lines, "prompt_tokens_by_source", "source", sources)
        self._labelled(lines, "prompt_tokens_cached_by_source", "source", tiers)
        self._labelled(lines, "request_success", "finished_reason", self._success)

    def _gpus(self, lines: list[str], gpus: SimulatedGpus, read: EngineSnapshot) -> None:
        """Add the memory and the energy of its GPUs, by the law; no line where the law knows none."""
        held = {part: share for part, share in asdict(gpus.memory).items() if part not in read.asleep}
        name = "weir_sim_gpu_memory_use"
        lines += [f"# TYPE {name} gauge", f"{name}{{{self._labels}}} {min(1.0, sum(held.values()))!r}"]
        if gpus.limit_w is None:
            return
        idle_s = max(0.0, read.now_s - self._computed_s)
        at_limit = at_limit_s(read.draws, self._computed_s, idle_s, read.stats.arithmetic_s)
        name, joules = "weir_sim_gpu_energy_joules_total", gpus.limit_w * at_limit / self._about.time_scale
        lines += [f"# TYPE {name} counter", f"{name}{{{self._labels}}} {joules!r}"]

    def _tiers(self, lines: list[str], stats: TiersStats) -> None:
        """Add the metrics of KV below the GPU: totals as in vLLM's offloading."""
        tiers = stats.tiers
        read, written = sum(tier.read_bytes for tier in tiers), sum(tier.written_bytes for tier in tiers)
        for name, value in (
            ("vllm:kv_offload_load_bytes_total", read),
            ("vllm:kv_offload_load_time_total", sum(tier.load_s for tier in tiers)),
            ("vllm:kv_offload_store_bytes_total", written),
            ("vllm:kv_offload_store_time_total", sum(tier.write_s for tier in tiers)),
            ("weir_sim_kv_bubble_seconds_total", stats.bubble_s),
            ("weir_sim_kv_prefetch_wasted_bytes_total", stats.wasted_bytes),
            ("weir_sim_kv_backlog_bytes", stats.backlog_bytes),
        ):
            kind = "gauge" if name.endswith("backlog_bytes") else "counter"
            lines += [f"# TYPE {name} {kind}", f"{name}{{{self._labels}}} {float(value)!r}"]
        for way, size, count in (
            ("load", read, sum(tier.loads for tier in tiers)),
            ("store", written, sum(tier.stores for tier in tiers)),
        ):
            name = f"vllm:kv_offload_{way}_size"
            lines += [f"# TYPE {name} summary", f"{name}_sum{{{self._labels}}} {float(size)!r}"]
            lines.append(f"{name}_count{{{self._labels}}} {float(count)!r}")
        self._by_tier(lines, tiers)

    def _by_tier(self, lines: list[str], tiers: Sequence[TierStats]) -> None:
        """Add the metrics of each tier as in vLLM's tiered offloading."""
        for name, sizes in (
            ("used_bytes", {tier.name: tier.used_bytes for tier in tiers}),
            ("capacity_bytes", {tier.name: tier.capacity_bytes for tier in tiers}),
            ("backlog_bytes", {tier.name: tier.backlog_bytes for tier in tiers}),
        ):
            lines.append(f"# TYPE weir_sim_kv_tier_{name} gauge")
            lines += [
                f'weir_sim_kv_tier_{name}{{{self._labels},tier="{tier}"}} {float(value)!r}'
                for tier, value in sizes.items()
            ]
        for name, values in (
            ("read_bytes", {tier.name: tier.read_bytes for tier in tiers}),
            ("read_time", {tier.name: tier.load_s for tier in tiers}),
            ("write_bytes", {tier.name: tier.written_bytes for tier in tiers}),
            ("write_time", {tier.name: tier.write_s for tier in tiers}),
            ("block_queries", {tier.name: tier.queried_blocks for tier in tiers}),
            ("block_hits", {tier.name: tier.hit_blocks for tier in tiers}),
        ):
            self._labelled(lines, f"kv_offload_tiering_{name}", "tier", values)

    def _labelled(self, lines: list[str], name: str, label: str, values: Mapping[str, float]) -> None:
        lines.append(f"# TYPE vllm:{name}_total counter")
        for key, value in values.items():
            lines.append(f'vllm:{name}_total{{{self._labels},{label}="{key}"}} {float(value)!r}')


def histogram_lines(name: str, labels: str, histogram: Histogram) -> list[str]:
    totals = histogram.cumulative()
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {total}' for bound, total in zip(bounds, totals, strict=True)]
    return [*lines, f"{name}_sum{{{labels}}} {histogram.total!r}", f"{name}_count{{{labels}}} {totals[-1]}"]


def _one_two_five(largest: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50 … up to the window."""
    series = (mantissa * 10**exponent for exponent in range(12) for mantissa in (1, 2, 5))
    return [value for value in series if value <= largest]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
