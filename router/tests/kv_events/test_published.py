"""An index fed with events that were encoded by the structs of released engines (encode_published.py)."""

import json
from collections.abc import Iterable, Iterator

import msgpack
import pytest
import zmq

from router.kv_events.batch import BlocksRemoved, BlocksStored, Undecodable, decode
from router.kv_events.feed import Feed
from router.kv_events.followed_groups import SALTS
from router.kv_events.listener import _doubt
from router.kv_events.sources import discover
from router.pool.kv_event_state import KvEventState
from router.prefix.blocks import extra_keys, linked
from router.prefix.exact.index import DEVICE, DISK, HOST, ExactIndex
from router.tests.kv_events.encode_published import GOLDEN, TOKENS
from router.tokenize.sim import SimTokenizer
from router.tokenize.tokenizer import packed

PUBLISHED = {
    name: {case: bytes.fromhex(raw) for case, raw in cases.items()}
    for name, cases in json.loads(GOLDEN.read_text()).items()
}
ALL = sorted(PUBLISHED)
VLLM = [name for name in ALL if name.startswith("vllm")]
SGLANG = [name for name in ALL if name.startswith("sglang")]
SALTED = [name for name in ALL if name != "sglang 0.5.17"]
SEED = 1


@pytest.fixture
def feed() -> Iterator[Feed]:
    with zmq.Context() as context:
        yield Feed("a", lambda: discover(""), ExactIndex(SEED), context)


def stored(payload: bytes) -> BlocksStored:
    (event,) = decode(payload).events
    assert isinstance(event, BlocksStored)
    return event


def told(feed: Feed, payloads: Iterable[bytes]) -> None:
    for payload in payloads:
        feed._tell(decode(payload))


def found(feed: Feed, adapter: str = "", salt: str = "") -> tuple[int, int, int]:
    """Return the tokens that a request with this adapter and salt has on device, host and disk."""
    hashes = linked(packed(TOKENS), 16, SEED, extra_keys(adapter, salt, 2))
    return feed._index.match(hashes, 16).get("a", (0, 0, 0))


@pytest.mark.parametrize("engine", ALL)
def test_a_stored_block_is_held_until_it_is_removed(engine: str, feed: Feed) -> None:
    told(feed, [PUBLISHED[engine]["plain"]])
    assert (found(feed), feed.block_size) == ((32, 0, 0), 16)
    told(feed, [PUBLISHED[engine]["removed"]])
    assert found(feed) == (0, 0, 0)


@pytest.mark.parametrize("engine", SALTED)
def test_salted_blocks_match_only_with_their_salt(engine: str, feed: Feed) -> None:
    told(feed, [PUBLISHED[engine]["salted"]])
    assert (found(feed, salt="tenant-a"), found(feed), found(feed, salt="tenant-b")) == ((32, 0, 0), *[(0, 0, 0)] * 2)


@pytest.mark.parametrize("engine", [*VLLM, "sglang 0.5.23"])
def test_an_adapters_blocks_match_only_with_its_name(engine: str, feed: Feed) -> None:
    salt = "tenant-a" if engine in SGLANG else ""
    told(feed, [PUBLISHED[engine]["adapter"]])
    assert (found(feed, "ad", salt), found(feed, "", salt), found(feed, "ad", "x")) == ((32, 0, 0), *[(0, 0, 0)] * 2)


@pytest.mark.parametrize("engine", SGLANG)
def test_sglangs_media_are_mapped_to_host_remote_and_disk(engine: str) -> None:
    events = [stored(PUBLISHED[engine][case]) for case in ("plain", "pinned", "remote", "disk")]
    assert [event.tier for event in events] == [DEVICE, HOST, DISK, DISK]
    assert [event.reports_removal for event in events] == [True, True, False, True]


def test_a_shared_store_keeps_its_blocks_when_one_engine_clears_its_cache(feed: Feed) -> None:
    told(feed, [PUBLISHED["sglang 0.5.23"][case] for case in ("plain", "remote")])
    assert found(feed) == (32, 0, 0)
    told(feed, [msgpack.packb([1.0, [{"type": "AllBlocksCleared"}]])])
    assert (found(feed), feed._index.blocks("a")) == ((0, 0, 32), (0, 0, 0))
    while feed._index.sweep(100):
        pass
    assert found(feed) == (0, 0, 32)
    feed._empty()  # no engine is left that reports the store's blocks
    assert found(feed) == (0, 0, 0)


@pytest.mark.parametrize("engine", VLLM)
def test_sink_layers_count_as_complete_and_windows_do_not_whatever_blocks_they_omit(engine: str, feed: Feed) -> None:
    told(feed, [PUBLISHED[engine][case] for case in ("sink", "window", "window, masked")])
    assert (found(feed), feed._index.blocks("a")) == ((32, 0, 0), (2, 0, 0))


FEWER = {"type": "BlockStored", "block_hashes": [9], "parent_block_hash": None, "token_ids": TOKENS, "block_size": 16}
WINDOW = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 17}


@pytest.mark.parametrize(
    ("names", "more", "trouble"),
    [
        ([1, 2], {"kv_cache_spec_sliding_window": None}, "its events do not say how long"),
        ([2], {}, "its events do not say for which blocks"),
        ([1, 2], {"kv_cache_spec_kind": "new"}, "its events do not say how long"),
    ],
)
def test_layers_with_unknown_needs_are_not_followed_and_the_feed_reports_it(
    names: list[int], more: dict[str, object], trouble: str, feed: Feed
) -> None:
    feed._why = ""
    told(feed, [msgpack.packb([1.0, [{**FEWER, **WINDOW, "block_hashes": names, **more}]])])
    assert feed._index.blocks("a") == (0, 0, 0)
    assert trouble in feed.trouble


def test_a_window_of_no_length_is_refused_with_its_number() -> None:
    with pytest.raises(Undecodable, match="a sliding window of 0 tokens; allowed are 1 to"):
        decode(msgpack.packb([1.0, [{**FEWER, **WINDOW, "kv_cache_spec_sliding_window": 0}]]))


@pytest.mark.parametrize("engine", VLLM)
def test_an_incomplete_block_does_not_change_the_block_size(engine: str, feed: Feed) -> None:
    told(feed, [PUBLISHED[engine]["plain"], PUBLISHED[engine]["part"]])
    assert (feed.block_size, found(feed)) == (16, (32, 0, 0))


@pytest.mark.parametrize("engine", VLLM)
def test_an_incomplete_first_block_sets_the_block_size_only_until_the_next_one(engine: str, feed: Feed) -> None:
    told(feed, [PUBLISHED[engine]["part"], PUBLISHED[engine]["plain"]])
    assert (feed.block_size, found(feed)) == (16, (32, 0, 0))


@pytest.mark.parametrize("engine", VLLM)
def test_a_store_reports_no_removals_while_offloading_does(engine: str) -> None:
    assert not stored(PUBLISHED[engine]["store"]).reports_removal
    assert stored(PUBLISHED[engine]["store"].replace(b"\xa3cpu", b"\xa3CPU")).reports_removal


LMCACHE = {"type": "BlockStored", "parent_block_hash": None, "lora_id": None, "medium": "CPU", "lora_name": None}


def test_chunks_of_lmcache_match_by_the_engines_blocks_and_end_as_whole_chunks(feed: Feed) -> None:
    first = {**LMCACHE, "block_hashes": [b"y" * 32], "token_ids": TOKENS, "block_size": 32}
    longer = [*TOKENS, *range(100, 132)]
    second = {**first, "block_hashes": [b"z" * 32], "parent_block_hash": b"y" * 32, "token_ids": longer[32:]}
    told(feed, [PUBLISHED["vllm 0.33.0"]["plain"], msgpack.packb([1.0, [first, second]])])
    assert (feed.block_size, feed.unit, found(feed), feed.but_for) == (16, 32, (32, 0, 0), SALTS)
    told(feed, [PUBLISHED["vllm 0.33.0"]["removed"]])
    hashes = linked(packed(longer), 16, SEED, ())
    assert feed._index.match(hashes, 16) == {"a": (0, 64, 0)}
    gone = {"type": "BlockRemoved", "block_hashes": [b"y" * 32], "medium": "CPU"}
    told(feed, [msgpack.packb([1.0, [gone]])])
    assert (feed._index.match(hashes, 16), feed._index.blocks("a")) == ({}, (0, 2, 0))


def test_layers_with_blocks_in_host_memory_only_are_not_followed_and_the_feed_reports_it(feed: Feed) -> None:
    plain = PUBLISHED["vllm 0.33.0"]["plain"]
    told(feed, [plain.replace(b"\xa3GPU", b"\xa3CPU")])
    assert ("HiSparse" in feed._groups.trouble, found(feed)) == (True, (0, 0, 0))
    told(feed, [plain])
    assert (feed._groups.trouble, found(feed)) == ("", (32, 0, 0))


def test_vllms_offloaded_chunks_of_blocks_are_learned_from_events(feed: Feed) -> None:
    """The connector's extra config sets self_describing_kv_events and blocks_per_chunk."""
    told(feed, [PUBLISHED["vllm 0.33.0"]["plain"]])
    assert feed.unit == 0
    told(feed, [PUBLISHED["vllm 0.33.0"]["plain"].replace(b"\xa3GPU", b"\xa3CPU")])
    assert feed.unit == 32


@pytest.mark.parametrize(("engine", "doubt"), [("vllm 0.33.0", ""), ("sglang 0.5.23", "layers")])
@pytest.mark.parametrize("forgetful", [True, False])
def test_events_that_name_no_layers_are_doubted_if_some_layers_keep_less(
    engine: str, doubt: str, forgetful: bool, feed: Feed
) -> None:
    state = KvEventState()
    state.reader = reader = SimTokenizer()
    reader.forgetful = forgetful
    told(feed, [PUBLISHED[engine]["plain"]])
    feed.complete = True
    assert _doubt(feed, state) == (doubt if forgetful else "")
    feed.complete = False
    assert _doubt(feed, state) == "from_start"


@pytest.mark.parametrize(("folder", "doubt"), [("/models/a", ""), ("sglang:/models/a", "layers")])
def test_an_sglang_that_publishes_no_block_for_a_model_with_windows_is_doubted(
    folder: str, doubt: str, feed: Feed
) -> None:
    """A cache that has only windows records no events."""
    state = KvEventState()
    state.reader_name, state.reader = folder, (reader := SimTokenizer())
    reader.forgetful = feed.complete = True
    assert (feed.block_size, _doubt(feed, state)) == (0, doubt)


@pytest.mark.parametrize("more", [{}, {"group_idx": 0}, {"group_idx": 2, "kv_cache_spec_kind": "full_attention"}])
def test_fewer_names_than_blocks_are_refused_with_both_numbers(more: dict[str, object]) -> None:
    with pytest.raises(Undecodable, match="1 names for 2 blocks of 16 tokens"):
        decode(msgpack.packb([1.0, [{**FEWER, **more}]]))


def test_fewer_names_of_a_further_group_belong_to_other_layers(feed: Feed) -> None:
    """Some versions do not name the kinds of groups; their first group is complete."""
    told(feed, [PUBLISHED["vllm 0.33.0"]["plain"], msgpack.packb([1.0, [{**FEWER, "group_idx": 1}]])])
    assert feed._index.blocks("a") == (2, 0, 0)


def test_pairs_of_tokens_are_refused_with_their_name() -> None:
    pairs = [[token, token + 1] for token in TOKENS]
    with pytest.raises(Undecodable, match="pairs of tokens"):
        decode(msgpack.packb([1.0, [{**FEWER, "block_hashes": [1, 2], "token_ids": pairs}]]))


def test_a_removal_is_read_whatever_the_medium() -> None:
    for engine in ALL:
        (event,) = decode(PUBLISHED[engine]["removed"]).events
        assert isinstance(event, BlocksRemoved)
