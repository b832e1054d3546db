"""A hostile engine's metrics page."""

import math
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.metrics import metrics_page
from router.contract.metrics.engine_metrics import MOONCAKE_SCRAPE, VLLM_SCRAPE, Scrape, parse_metrics
from router.contract.metrics.metrics_page import LARGEST_NUMBER
from router.contract.redis import codec
from router.contract.redis.sample import EngineMetrics, InstanceSample, sample_of

NAMES = [
    VLLM_SCRAPE.kv_usage,
    VLLM_SCRAPE.running,
    VLLM_SCRAPE.prompt_tokens,
    VLLM_SCRAPE.cached_by_source,
    VLLM_SCRAPE.cache_config,
    "vllm:nixl_bytes_transferred_sum",
    "vllm:mooncake_store_operation_total",
    "master_allocated_bytes",
    "master_total_capacity_bytes",
]
LABELS = [
    "",
    "{",
    "{}",
    '{source="device"}',
    '{source="a\u202eb"}',
    '{block_size="16",num_gpu_blocks="99999999999999"}',
    '{operation="save_put"}',
    '{a="}"}',
]
VALUES = ["0", "1", "-1", "1e308", "-inf", "NaN", "1e999", "9" * 400, "", "0x1", "1 2 3", "\u0661"]
CONFIG = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="%s"} 1'
line = st.builds("{}{} {}".format, st.sampled_from(NAMES), st.sampled_from(LABELS), st.sampled_from(VALUES))
page = st.one_of(st.lists(st.one_of(line, st.text(max_size=30))).map("\n".join).map(str.encode), st.binary())


def figures(found: EngineMetrics) -> list[float]:
    numbers = [found.running, found.waiting, found.prompt_tokens_total, found.generation_tokens_total]
    numbers += [*found.cached_by_source.values(), *found.transfers.values()]
    return [number for number in numbers if number is not None]


@given(page, st.sampled_from([VLLM_SCRAPE, MOONCAKE_SCRAPE]))
def test_any_metrics_page_gives_a_sample_that_can_be_written_and_read(raw: bytes, names: Scrape) -> None:
    refused: Counter[str] = Counter()
    found = parse_metrics(raw, names, refused)
    assert found.kv_usage is None or 0 <= found.kv_usage <= 1
    assert all(math.isfinite(number) and number >= 0 for number in figures(found))
    assert all(count is None or 0 <= count < 2**31 for count in (found.kv_blocks, found.block_size))
    sample = sample_of(found, id="p-0", epoch=1, at=1.0, refused=dict(refused))
    assert codec.read(InstanceSample, codec.encode(sample)) == sample


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("vllm:num_requests_running -1", "vllm:num_requests_running: out of range (0 to 2^53)"),
        (f"vllm:num_requests_running {LARGEST_NUMBER * 2}", "vllm:num_requests_running: out of range (0 to 2^53)"),
        ("vllm:num_requests_running many", "vllm:num_requests_running: not a number"),
        ("vllm:num_requests_running ", "vllm:num_requests_running: not a number"),
        (f'vllm:num_requests_running{{a="{"b" * 20_000}"}} 1', "vllm:num_requests_running: a line of more than 16384"),
        ("vllm:kv_cache_usage_perc 1.5", "vllm:kv_cache_usage_perc: out of range (0 to 1)"),
        (CONFIG % "99999999999", "num_gpu_blocks: out of range (0 to 2147483647)"),
        (CONFIG % ("9" * 5000), "num_gpu_blocks: out of range (0 to 2147483647)"),
    ],
)
def test_an_impossible_figure_is_unknown_and_counted(line: str, reason: str) -> None:
    refused: Counter[str] = Counter()
    found = parse_metrics(b"\n" + line.encode() + b"\n", VLLM_SCRAPE, refused)
    assert (found.running, found.kv_usage, found.kv_blocks) == (None, None, None)
    ((said, count),) = refused.items()
    assert (said.startswith(reason), count) == (True, 1)


def test_fields_that_an_engine_does_not_know_are_not_counted_against_it() -> None:
    refused: Counter[str] = Counter()
    raw = b'\nvllm:num_requests_running NaN\nvllm:cache_config_info{num_gpu_blocks="None"} 1\n'
    assert parse_metrics(raw, VLLM_SCRAPE, refused) == parse_metrics(b"", VLLM_SCRAPE)
    assert not refused


def test_too_many_series_are_cut_off() -> None:
    refused: Counter[str] = Counter()
    raw = b"".join(b'\nvllm:num_requests_running{a="%d"} 1' % n for n in range(metrics_page.MOST_SERIES + 1))
    assert parse_metrics(raw, VLLM_SCRAPE, refused).running == metrics_page.MOST_SERIES
    assert refused == {"vllm:num_requests_running: more than 4096 series": 1}


def test_too_many_sources_are_cut_off() -> None:
    refused: Counter[str] = Counter()
    lines = (f'{VLLM_SCRAPE.cached_by_source}{{source="s{n}"}} 1' for n in range(100))
    found = parse_metrics(("\n" + "\n".join(lines) + "\n").encode(), VLLM_SCRAPE, refused)
    assert len(found.cached_by_source) == metrics_page.MOST_SOURCES
    assert refused == {f"{VLLM_SCRAPE.cached_by_source}: more than 32 sources": 100 - metrics_page.MOST_SOURCES}


@pytest.mark.parametrize("name", NAMES[:5])
def test_the_largest_page_of_one_name_is_read_quickly(name: str) -> None:
    for filler in (f"{name} 1\n", f"{name}{{" + "a," * 50 + "} 1\n", f"{name}_other 1\n", name + "{" + '"' * 5000):
        raw = b"\n" + filler.encode() * (metrics_page.LARGEST // len(filler))
        began = time.process_time()
        parse_metrics(raw, VLLM_SCRAPE, Counter())
        assert time.process_time() - began < 1.0
