"""The wanted figures of a Prometheus page by a scan for their names. Pure.

A full parse costs 8 ms for vLLM's page of 52 kB; finding ten names costs less than 0.2 ms.

The page is input like any other: a number out of its range, a line too long and series too many are refused, which
leaves the figure unknown, and counted.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from router.contract.redis.sample import EngineMetrics

LARGEST = 4 * 1024 * 1024  # bytes of a page; vLLM's has 75 kB for each data-parallel rank
LONGEST_LINE = 16 * 1024
MOST_SERIES = 4096  # of one name
MOST_SOURCES = 32
LARGEST_NUMBER = 2.0**53  # above it, a float no longer counts
LARGEST_COUNT = 2**31 - 1  # of blocks and of tokens in one

Refused = Counter[str]  # reason → how often

_SOURCE = re.compile(rb'[{,]source="([\w.:/-]{1,64})"')
_LABEL = re.compile(rb'[{,](\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class KvTransferTotals:
    """Counters of one way in which KV leaves or reaches an engine; several names of one figure are added up."""

    prefix: str  # that all these names have: a page without it is not searched for them
    n: tuple[str, ...]
    seconds: tuple[str, ...]
    bytes: tuple[str, ...]
    failed: tuple[str, ...]
    operations: tuple[str, ...] = ()  # of the label `operation`: what moves KV; empty: there is no such label


@dataclass(frozen=True, slots=True)
class Scrape:
    """Names on the engine's /metrics page; empty when it has no such figure."""

    kv_usage: str
    running: str
    waiting: str
    prefix_queries: str
    prefix_hits: str
    prompt_tokens: str
    generation_tokens: str
    preemptions: str
    cached_by_source: str  # a counter with a `source` label
    cache_config: str  # a gauge whose labels hold block_size and num_gpu_blocks
    prompt_by_source: str = ""  # a counter with a `source` label: where prompt tokens came from
    transfers: tuple[KvTransferTotals, ...] = ()
    tiers: tuple[tuple[str, str, str], ...] = ()  # of a store: (tier, gauge of used bytes, gauge of its capacity)


NO_SCRAPE = Scrape("", "", "", "", "", "", "", "", "", "")
MOONCAKE_SCRAPE = replace(
    NO_SCRAPE,
    tiers=(
        ("host", "master_allocated_bytes", "master_total_capacity_bytes"),
        ("disk", "master_allocated_file_size_bytes", "master_total_file_capacity_bytes"),
    ),
)
VLLM_SCRAPE = Scrape(
    kv_usage="vllm:kv_cache_usage_perc",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    prefix_queries="vllm:prefix_cache_queries_total",
    prefix_hits="vllm:prefix_cache_hits_total",
    prompt_tokens="vllm:prompt_tokens_total",
    generation_tokens="vllm:generation_tokens_total",
    preemptions="vllm:num_preemptions_total",
    cached_by_source="vllm:prompt_tokens_cached_by_source_total",
    cache_config="vllm:cache_config_info",
    prompt_by_source="vllm:prompt_tokens_by_source_total",
    transfers=(
        KvTransferTotals(
            "vllm:nixl_",
            n=("xfer_time_seconds_count",),
            seconds=("xfer_time_seconds_sum",),
            bytes=("bytes_transferred_sum",),
            failed=("num_failed_transfers_total",),
        ),
        KvTransferTotals(
            "vllm:mooncake_store_operation_",
            n=("total",),
            seconds=("time_seconds_sum",),
            bytes=("bytes_total",),
            failed=("failed_keys_total",),
            operations=("save_put", "load_get"),
        ),
        KvTransferTotals(
            "vllm:kv_offload_",
            n=("load_size_count", "store_size_count"),
            seconds=("load_time_total", "store_time_total"),
            bytes=("load_bytes_total", "store_bytes_total"),
            failed=(
                "allocation_failure_total",
                "tiering_promotion_job_failures_total",
                "tiering_cascade_job_failures_total",
            ),
        ),
    ),
)


def parse_metrics(page: bytes, names: Scrape, refused: Refused | None = None) -> EngineMetrics:
    """Adds to `refused` what it leaves out."""
    read = _Page(page, Counter() if refused is None else refused)
    config = read.labels(names.cache_config)
    tiers = _tiers(read, names)
    return EngineMetrics(
        kv_usage=_share(tiers) if tiers else read.share(names.kv_usage),
        running=read.sum(names.running),
        waiting=read.sum(names.waiting),
        prefix_queries_total=read.sum(names.prefix_queries),
        prefix_hits_total=read.sum(names.prefix_hits),
        prompt_tokens_total=read.sum(names.prompt_tokens),
        generation_tokens_total=read.sum(names.generation_tokens),
        preemptions_total=read.sum(names.preemptions),
        cached_by_source=read.by_source(names.cached_by_source),
        block_size=read.count(config, b"block_size"),
        kv_blocks=read.count(config, b"num_gpu_blocks"),
        tiers=tiers,
        prompt_by_source=read.by_source(names.prompt_by_source),
        transfers=_transfers(read, names),
    )


class _Page:
    def __init__(self, raw: bytes, refused: Refused) -> None:
        self.raw = raw
        self._refused = refused

    def series(self, name: str) -> Iterator[tuple[bytes, float]]:
        """(labels, value) of each line of that very name."""
        if not name:
            return
        page, wanted = self.raw, b"\n" + name.encode()
        # A page may begin with the name; a line is only found after a line feed.
        at = 0 if page.startswith(wanted[1:]) else page.find(wanted)
        for _ in range(MOST_SERIES):
            if at < 0:
                return
            begin = at + len(wanted) - (page[at : at + 1] != b"\n")
            end = page.find(b"\n", begin)
            value = self._value(name, page[begin : end if end >= 0 else len(page)])
            if value is not None:
                yield value
            at = page.find(wanted, begin)
        if at >= 0:
            self._refuse(f"{name}: more than {MOST_SERIES} series")

    def _value(self, name: str, line: bytes) -> tuple[bytes, float] | None:
        """(labels, value); None when the name goes on (another series) or the value is refused."""
        if line[:1] not in (b"{", b" "):
            return None
        if len(line) > LONGEST_LINE:
            self._refuse(f"{name}: a line of more than {LONGEST_LINE} bytes")
            return None
        words = line[line.rfind(b"}") + 1 :].split(maxsplit=1)
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            self._refuse(f"{name}: not a number")
            return None
        if not math.isfinite(value):  # some engines say NaN where they have no figure
            return None
        if not 0 <= value <= LARGEST_NUMBER:
            self._refuse(f"{name}: out of range (0 to 2^53)")
            return None
        return line, value

    def _refuse(self, why: str) -> None:
        self._refused[why] += 1

    def sum(self, name: str) -> float | None:
        values = [value for _, value in self.series(name)]
        return sum(values) if values else None

    def share(self, name: str) -> float | None:
        """0–1, the mean of all series."""
        values = [value for _, value in self.series(name)]
        if any(value > 1 for value in values):
            self._refuse(f"{name}: out of range (0 to 1)")
            return None
        return sum(values) / len(values) if values else None

    def by_source(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for labels, value in self.series(name):
            source = _SOURCE.search(labels)
            if source is None:
                continue
            key = source[1].decode()
            if key in found or len(found) < MOST_SOURCES:
                found[key] = found.get(key, 0.0) + value
            else:
                self._refuse(f"{name}: more than {MOST_SOURCES} sources")
        return found

    def labels(self, name: str) -> dict[bytes, bytes]:
        return next((dict(_LABEL.findall(labels)) for labels, _ in self.series(name)), {})

    def count(self, labels: dict[bytes, bytes], key: bytes) -> int | None:
        text = labels.get(key, b"")
        if not text.isdigit():  # vLLM says None where it has no figure
            return None
        if len(text) > 10 or int(text) > LARGEST_COUNT:
            self._refuse(f"{key.decode()}: out of range (0 to {LARGEST_COUNT})")
            return None
        return int(text)


def _transfers(page: _Page, names: Scrape) -> dict[str, float]:
    """Of all ways together, n, seconds, bytes and failed; nothing where the engine moves no KV."""
    found: dict[str, float] = {}
    for way in names.transfers:
        if b"\n" + way.prefix.encode() in page.raw:
            for figure in ("n", "seconds", "bytes", "failed"):
                _add(found, figure, _moved(page, way, getattr(way, figure)))
    return found


def _add(found: dict[str, float], figure: str, values: list[float]) -> None:
    if values:
        found[figure] = found.get(figure, 0.0) + sum(values)


def _moved(page: _Page, way: KvTransferTotals, names: tuple[str, ...]) -> list[float]:
    return [
        value
        for name in names
        for labels, value in page.series(way.prefix + name)
        if not way.operations or any(f'operation="{each}"'.encode() in labels for each in way.operations)
    ]


def _tiers(page: _Page, names: Scrape) -> dict[str, tuple[float, float]]:
    found = {tier: (page.sum(used), page.sum(capacity)) for tier, used, capacity in names.tiers}
    return {tier: (used, capacity or 0.0) for tier, (used, capacity) in found.items() if used is not None}


def _share(tiers: dict[str, tuple[float, float]]) -> float | None:
    """How full the first tier is: the store's memory."""
    used, capacity = next(iter(tiers.values()))
    return min(1.0, used / capacity) if capacity else None
