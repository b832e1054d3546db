"""Decoding of the batches that engines send: maps and arrays, ints and bytes, every medium."""

import struct
from array import array

import msgpack
import pytest

from router.kv_events.batch import BlocksCleared, BlocksRemoved, BlocksStored, Undecodable, decode
from router.prefix.exact.index import DEVICE, DISK, HOST

STORED = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
}


def events(*raw: object) -> list:
    return list(decode(msgpack.packb([12.5, list(raw), 0])).events)


def only(raw: object) -> object:
    (event,) = events(raw)
    return event


def test_a_stored_event_has_names_parent_tokens_and_tier() -> None:
    event = only(STORED)
    assert isinstance(event, BlocksStored)
    assert event.tokens == struct.pack("<4I", 1, 2, 3, 4)
    assert (event.block_size, event.tier, len(event.names), event.extras) == (2, DEVICE, 2, ())
    assert event.parent is not None
    assert event.parent not in event.names


def test_an_array_is_read_like_a_map() -> None:
    assert only(["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU"]) == only(STORED)
    assert only(["BlockRemoved", [11], "CPU"]) == only({"type": "BlockRemoved", "block_hashes": [11], "medium": "CPU"})
    assert only(["AllBlocksCleared"]) == BlocksCleared()


def test_a_clients_long_name_of_its_session_hides_no_event() -> None:
    assert events({**STORED, "session_id": "s" * 100_000}) == events(STORED)


def test_blocks_of_an_image_are_left_out_and_the_rest_of_the_batch_is_read() -> None:
    image = {**STORED, "token_ids": [1, 2, 3, "image"]}
    assert events(image, STORED) == events(STORED)
    with pytest.raises(Undecodable):
        events({**STORED, "token_ids": [1, 2, 3, None]})


def test_a_removal_may_count_the_copies_that_remain() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [11, 12, 11], "medium": "GPU"}
    plain, counted = only(removed), only({**removed, "remaining_copy_counts": [1, 0, 0]})
    assert isinstance(plain, BlocksRemoved)
    assert isinstance(counted, BlocksRemoved)
    assert counted.names == {plain.names[0]: 0, plain.names[1]: 0}
    assert only({**removed, "remaining_copy_counts": None}) == plain


@pytest.mark.parametrize("counts", [[], [1], [1, 2, 3], [-1, 0], [0, 2**40], ["1", 0], [True, 0], 7, {}, "ab"])
def test_impossible_counts_of_copies_are_refused(counts: object) -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [11, 12], "medium": "GPU", "remaining_copy_counts": counts}
    with pytest.raises(Undecodable):
        events(removed)


def test_the_tokens_that_follow_a_block_are_part_of_its_name() -> None:
    ahead = only({**STORED, "lookahead_token_ids": [[3, 4], [5, 6]], "extra_keys": [None, ["salt"]]})
    assert isinstance(ahead, BlocksStored)
    following = array("I", [3, 4]).tobytes(), array("I", [5, 6]).tobytes()
    assert (ahead.ahead, ahead.extras) == (2, [following[0], following[1] + msgpack.packb(["salt"])])
    assert only({**STORED, "lookahead_token_ids": None}) == only(STORED)


@pytest.mark.parametrize("following", [[], [[3]], [[3], [4, 5]], [[3], 4], [[1] * 65] * 2, 7])
def test_impossible_tokens_after_blocks_are_refused(following: object) -> None:
    with pytest.raises(Undecodable):
        events({**STORED, "lookahead_token_ids": following})


def test_an_array_of_vllm_0_20_ends_with_its_group() -> None:
    stored, removed = (
        only(["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU", None, [None, None], 1]),
        only(["BlockRemoved", [11], "GPU", 1]),
    )
    assert isinstance(stored, BlocksStored)
    assert isinstance(removed, BlocksRemoved)
    assert (stored.group, stored.extras, removed.group) == (1, (), 1)


def test_blocks_stored_on_another_tier_have_no_tokens_and_no_size() -> None:
    event = only({**STORED, "token_ids": [], "block_size": 0, "parent_block_hash": None, "medium": "CPU"})
    assert isinstance(event, BlocksStored)
    assert (event.tokens, event.tier, len(event.names)) == (b"", HOST, 2)


def test_a_name_in_bytes_is_reduced_to_its_last_eight() -> None:
    long = {**STORED, "block_hashes": [b"x" * 24 + (11).to_bytes(8, "big"), b"y" * 24 + (12).to_bytes(8, "big")]}
    assert only(long) == only(STORED)


@pytest.mark.parametrize(
    ("medium", "tier"),
    [(None, DEVICE), ("GPU", DEVICE), ("gpu", DEVICE), ("CPU", HOST), ("STORAGE", DISK), ("FS", DISK), ("SSD", DISK)],
)
def test_each_medium_is_a_tier(medium: str | None, tier: int) -> None:
    event = only({"type": "BlockRemoved", "block_hashes": [1], "medium": medium})
    assert isinstance(event, BlocksRemoved)
    assert event.tier == tier


def test_extras_hashed_into_a_block_are_kept() -> None:
    salted = only({**STORED, "extra_keys": [None, ["salt"]]})
    older = only({**STORED, "lora_name": "adapter"})
    assert isinstance(salted, BlocksStored)
    assert isinstance(older, BlocksStored)
    assert [bool(extra) for extra in salted.extras] == [False, True]
    assert [bool(extra) for extra in older.extras] == [True, True]


def test_layers_with_a_sliding_window_are_distinguished() -> None:
    whole = only({**STORED, "group_idx": 0, "kv_cache_spec_kind": "full_attention"})
    window = only({**STORED, "group_idx": 1, "kv_cache_spec_kind": "sliding_window"})
    assert isinstance(whole, BlocksStored)
    assert isinstance(window, BlocksStored)
    assert (whole.whole, whole.group, window.whole, window.group) == (True, 0, False, 1)


def test_unknown_kinds_of_events_are_left_out() -> None:
    assert events({"type": "BlockMoved", "where": "to"}, ["Anything", 1], STORED) == [only(STORED)]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb([1.0]),
        msgpack.packb(["now", []]),
        msgpack.packb([1.0, [{"no": "type"}]]),
        msgpack.packb([1.0, [{**STORED, "token_ids": [1]}]]),
        msgpack.packb([1.0, [{**STORED, "token_ids": [-1, 2, 3, 4]}]]),
        msgpack.packb([1.0, [{**STORED, "block_size": 0}]]),
        msgpack.packb([1.0, [{**STORED, "block_hashes": [1.5]}]]),
    ],
)
def test_anything_else_is_refused_with_a_reason(payload: bytes) -> None:
    with pytest.raises(Undecodable, match="not a batch of KV events"):
        decode(payload)
