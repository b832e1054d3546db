"""The store that engines share: what it keeps, and what engines read from it."""

from collections.abc import Iterator

import httpx
import pytest

from fleet.tests.simengine.conftest import Sim, start
from fleet.tests.simengine.test_nixl import PROMPT, text, until
from router.tests.forked import STORE, Forked


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    process = Forked(STORE, ["--port=0", "--capacity-gb=1"])
    yield f"http://{process.stdout.readline().split()[-1]}"
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def pair(store: str) -> Iterator[tuple[Sim, Sim]]:
    first, second = (start(kv="mooncake_store", kv_store=store) for _ in range(2))
    yield first, second
    first.close()
    second.close()


def keys(store: str) -> int:
    page = httpx.get(store + "/metrics").text
    return next(int(line.split()[1]) for line in page.splitlines() if line.startswith("master_key_count"))


def test_one_engine_hits_the_blocks_of_another_in_the_store(store: str, pair: tuple[Sim, Sim]) -> None:
    one, other = pair
    first = one.complete(PROMPT, 20)
    until(lambda: keys(store) >= 125)
    second = other.complete(PROMPT, 20)
    assert text(first) == text(second)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 1999  # type: ignore[index]
    metrics = other.metrics()
    assert metrics["vllm:external_prefix_cache_hits_total"] == 1999
    assert metrics["vllm:prompt_tokens_cached_by_source_total{source=external_unspecified}"] == 1999


def test_a_prompt_that_is_not_in_the_store_is_computed(pair: tuple[Sim, Sim]) -> None:
    one, _ = pair
    answer = one.complete("never seen " + PROMPT, 4)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # type: ignore[index]


def test_an_unreachable_store_costs_only_its_hits() -> None:
    alone = start(kv="mooncake_store", kv_store="http://127.0.0.1:9")
    try:
        answer = alone.complete(PROMPT, 4)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # type: ignore[index]
    finally:
        alone.close()


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"hashes":[1]}'])
def test_the_store_refuses_an_unreadable_body_with_the_reason(store: str, body: bytes) -> None:
    answer = httpx.post(store + "/put", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
