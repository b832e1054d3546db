"""Blocks in a store as vLLM's connectors report them: stored, but never removed."""

import time
from collections.abc import Iterator

import msgpack
import pytest
import zmq

from router.kv_events.batch import decode
from router.kv_events.feed import UNTOLD_STORE, Feed
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


def held(index: ExactIndex, salt: str = "", by: str = "a") -> tuple[int, int, int]:
    return index.match(hashes(salt), 16).get(by, (0, 0, 0))


@pytest.fixture
def pair(index: ExactIndex) -> Iterator[tuple[Feed, Feed]]:
    """Two engines of a pool that share a store."""
    with zmq.Context() as context:
        first, second = (Feed(name, lambda: discover(""), index, context, shares=True) for name in "ab")
        tell(second, VLLM["removed"])
        yield first, second


def test_a_block_of_a_store_outlives_the_device_for_a_while(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["removed"])
    index.expire(time.monotonic() + untold.BELIEVED_S - 60)
    assert held(index) == (0, 32, 0)
    index.expire(time.monotonic() + AGED)
    assert (held(index), index.blocks("a"), len(index)) == ((0, 0, 0), (0, 0, 0), 0)


def test_offloaded_blocks_stay_until_their_engine_removes_them(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"].replace(b"\xa3cpu", b"\xa3CPU"), VLLM["removed"])
    index.expire(time.monotonic() + AGED)
    index.refute("a", hashes(), 0)
    assert held(index) == (0, 32, 0)


def on_disk(**more: object) -> bytes:
    """Return the same blocks in vLLM's tier of files, which reports no removals."""
    at, (event,), rank = msgpack.unpackb(VLLM["store"])
    return bytes(msgpack.packb([at, [{**event, "medium": "STORAGE", **more}], rank]))


def test_blocks_that_vllm_offloads_to_files_move_down_the_tiers_and_are_not_trusted_forever(
    feed: Feed, index: ExactIndex
) -> None:
    host, seen = VLLM["store"].replace(b"\xa3cpu", b"\xa3CPU"), []
    removed = VLLM["removed"]
    for payload in (VLLM["plain"], host, on_disk(), removed, removed.replace(b"\xa3GPU", b"\xa3CPU")):
        tell(feed, payload)
        seen.append(held(index))
    assert seen == [(32, 0, 0), (32, 0, 0), (32, 0, 0), (0, 32, 0), (0, 0, 32)]
    assert feed.but_for == UNTOLD_STORE
    index.refute("a", hashes(), 1)
    assert held(index) == (0, 0, 16)
    index.expire(time.monotonic() + AGED)
    assert held(index) == (0, 0, 0)


@pytest.mark.parametrize(("locality", "by_other"), [("LOCAL", (0, 0, 0)), ("REMOTE", (0, 0, 32))])
def test_shared_files_can_be_read_by_every_engine_that_writes_there(
    index: ExactIndex, locality: str, by_other: tuple[int, int, int]
) -> None:
    other = {"block_hashes": [b"c" * 32], "token_ids": [7] * 16}
    with zmq.Context() as context:
        first, second = (Feed(name, lambda: discover(""), index, context) for name in "ab")
        tell(first, VLLM["plain"], on_disk(locality=locality))
        tell(second, on_disk(medium="GPU", **other), on_disk(locality=locality, **other))
        assert held(index, by="b") == by_other


def test_an_answer_refutes_only_the_blocks_evicted_from_the_store(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["removed"])
    index.refute("a", hashes(), 1, asked_at=0.0)  # before they were stored
    assert held(index) == (0, 32, 0)
    index.refute("a", hashes(), 1)
    assert held(index) == (0, 16, 0)
    index.refute("a", hashes(), 0)
    index.refute("b", hashes(), 0)
    assert (held(index), index.held) == ((0, 0, 0), 0)


def test_blocks_that_are_also_on_the_device_stay_on_it(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"])
    index.refute("a", hashes(), 0)
    assert (held(index), index.blocks("a")) == ((32, 0, 0), (2, 0, 0))


def test_a_block_that_is_stored_again_counts_once_from_then_on(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["store"], VLLM["removed"])
    index.refute("a", hashes(), 0)
    assert held(index) == (0, 0, 0)


def test_of_too_many_blocks_the_oldest_are_dropped_first(
    feed: Feed, index: ExactIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untold, "MOST", 1)
    tell(feed, VLLM["plain"], VLLM["store"], VLLM["removed"])
    index.expire(time.monotonic())
    assert index.blocks("a") == (0, 1, 0)


def test_a_store_that_reports_no_salt_still_holds_the_salted_block(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["salted"], VLLM["store"], VLLM["removed"])
    assert (held(index, "tenant-a"), held(index)) == ((0, 32, 0), (0, 0, 0))


def test_the_memory_of_unreported_blocks_is_counted(feed: Feed, index: ExactIndex) -> None:
    tell(feed, VLLM["plain"])
    before = index.bytes
    tell(feed, VLLM["store"])
    assert index.bytes >= before + 2 * untold.BLOCK_BYTES


def test_every_engine_of_a_shared_store_can_read_the_others_blocks(pair: tuple[Feed, Feed], index: ExactIndex) -> None:
    tell(pair[0], VLLM["plain"], VLLM["store"])
    assert {feed.but_for for feed in pair} == {UNTOLD_STORE}
    assert (held(index), held(index, by="b"), sorted(index.match(hashes(), 16))) == ((32, 0, 0), (0, 32, 0), ["a", "b"])
    tell(pair[0], VLLM["removed"])
    assert held(index) == held(index, by="b") == (0, 32, 0)
    assert index.look_up(hashes(), 16, time.monotonic()) == index.match(hashes(), 16)


def test_a_block_that_one_model_stored_never_counts_for_another(pair: tuple[Feed, Feed], index: ExactIndex) -> None:
    """A pool changes its model while engines with both run; the store separates their blocks by the model's name."""
    index.of_models({"old"})
    tell(pair[0], VLLM["plain"], VLLM["store"])
    index.of_models({"old"})
    assert held(index, by="b") == (0, 32, 0)
    index.of_models({"old", "new"})
    assert (held(index), held(index, by="b")) == ((32, 0, 0), (0, 0, 0))
    tell(pair[0], VLLM["store"])
    assert held(index, by="b") == (0, 32, 0)
    index.clear("a")
    index.of_models({"new"})
    assert index.match(hashes(), 16) == {}
    while index.sweep(100):
        pass
    assert (index.held, len(index)) == (0, 0)


def test_an_engines_own_blocks_take_precedence_over_the_stores(pair: tuple[Feed, Feed], index: ExactIndex) -> None:
    tell(pair[0], VLLM["plain"], VLLM["store"])
    half = pair[1]._index
    half.store("b", [77], None, packed(TOKENS[:16]), 16)
    assert held(index, by="b") == (16, 16, 0)


def test_an_answer_of_one_engine_refutes_the_store_for_all(pair: tuple[Feed, Feed], index: ExactIndex) -> None:
    tell(pair[0], VLLM["plain"], VLLM["store"])
    index.refute("b", hashes(), 1)
    assert (held(index), held(index, by="b")) == ((32, 0, 0), (0, 16, 0))
    index.expire(time.monotonic() + AGED)
    assert (held(index), held(index, by="b")) == ((32, 0, 0), (0, 0, 0))


def test_a_store_outlives_its_writer_and_ends_with_its_last_reader(pair: tuple[Feed, Feed], index: ExactIndex) -> None:
    tell(pair[0], VLLM["salted"], VLLM["store"])
    index.clear("a")
    assert held(index, "tenant-a", by="b") == (0, 32, 0)
    index.clear("b")
    while index.sweep(100):
        pass
    tell(pair[0], VLLM["plain"])
    assert (held(index), held(index, by="b"), len(index), index.has_lower) == ((32, 0, 0), (0, 0, 0), 2, False)


def test_an_engine_with_a_separate_store_is_not_credited_with_the_blocks_of_others(
    feed: Feed, index: ExactIndex
) -> None:
    index.store("b", [77], None, packed(TOKENS[:16]), 16)
    tell(feed, VLLM["plain"], VLLM["store"])
    assert held(index, by="b") == (16, 0, 0)


def test_a_memory_pool_that_sglang_names_is_read_by_every_engine_that_stored_blocks_in_it(index: ExactIndex) -> None:
    with zmq.Context() as context:
        feeds = [Feed(name, lambda: discover(""), index, context) for name in "ab"]
        remote = PUBLISHED["sglang 0.5.23"]["remote"]
        for feed in feeds:
            tell(feed, remote)
            assert held(index) == (0, 0, 32)
        assert held(index, by="b") == (0, 0, 32)
