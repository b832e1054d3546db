"""Blocks in a store, as vLLM's connectors tell them: stored, and never removed."""

import time
from collections.abc import Iterator

import pytest
import zmq

from router.kv_events.batch import decode
from router.kv_events.feed import Feed
from router.kv_events.sources import discover
from router.prefix.blocks import extra_keys, linked
from router.prefix.exact import untold
from router.prefix.exact.index import ExactIndex
from router.tests.kv_events.encode_published import TOKENS
from router.tests.kv_events.test_published import PUBLISHED
from router.tokenize.tokenizer import packed

SEED = 1
VLLM = PUBLISHED["vllm 0.33.0"]
AGED = untold.BELIEVED_S + 1


def hashes(salt: str = "") -> list[int]:
    return linked(packed(TOKENS), 16, SEED, extra_keys("", salt, 2))


@pytest.fixture
def index() -> ExactIndex:
    return ExactIndex(SEED)


@pytest.fixture
def feed(index: ExactIndex) -> Iterator[Feed]:
    with zmq.Context() as context:
        yield Feed("a", lambda: discover(""), index, context)


def tell(feed: Feed, *payloads: bytes) -> None:
    for payload in payloads:
        feed._tell(decode(payload))


def held(index: ExactIndex, salt: str = "") -> tuple[int, int, int]:
    return index.match(hashes(salt), 16).get("a", (0, 0, 0))


def test_a_block_of_a_store_outlives_the_device_for_a_while(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["removed"])
    index.expire(time.monotonic() + untold.BELIEVED_S - 60)
    assert held(index) == (0, 32, 0)
    index.expire(time.monotonic() + AGED)
    assert (held(index), index.blocks("a"), len(index)) == ((0, 0, 0), (0, 0, 0), 0)


def test_what_an_engine_offloads_itself_stays_until_it_says_so(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"].replace(b"\xa3cpu", b"\xa3CPU"), VLLM["removed"])
    index.expire(time.monotonic() + AGED)
    index.refute("a", hashes(), 0)
    assert held(index) == (0, 32, 0)


def test_an_answer_refutes_what_the_store_has_evicted_and_no_more(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["removed"])
    index.refute("a", hashes(), 1)
    assert held(index) == (0, 16, 0)
    index.refute("a", hashes(), 0)
    index.refute("b", hashes(), 0)
    assert (held(index), index.held) == ((0, 0, 0), 0)


def test_what_is_on_the_device_too_stays_there(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"])
    index.refute("a", hashes(), 0)
    assert (held(index), index.blocks("a")) == ((32, 0, 0), (2, 0, 0))


def test_a_block_that_is_stored_again_is_one_block_and_counts_from_then(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["store"], VLLM["removed"])
    index.refute("a", hashes(), 0)
    assert held(index) == (0, 0, 0)


def test_the_oldest_of_too_many_go_first(feed: Feed, index: ExactIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untold, "MOST", 1)
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["removed"])
    index.expire(time.monotonic())
    assert index.blocks("a") == (0, 1, 0)


def test_a_store_that_tells_no_salt_has_the_salted_block_all_the_same(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["salted"], VLLM["store"], VLLM["removed"])
    assert (held(index, "tenant-a"), held(index)) == ((0, 32, 0), (0, 0, 0))


def test_the_memory_of_what_nobody_tells_is_counted(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"])
    before = index.bytes
    tell(feed, VLLM["store"])
    assert index.bytes >= before + 2 * untold.BLOCK_BYTES
