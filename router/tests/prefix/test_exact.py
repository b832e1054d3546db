"""The exact index's handling of engine events, case by case."""

import time
from typing import Any

import pytest

from router.prefix.blocks import block_hashes
from router.prefix.exact.index import DEVICE, DISK, HOST, ExactIndex, IndexFull

SEED = 99
SIZE = 4
PROMPT = bytes(range(64))  # four blocks of four tokens
HASHES = block_hashes(PROMPT, SIZE, SEED)


@pytest.fixture
def index() -> ExactIndex:
    return ExactIndex(SEED)


def test_a_prompt_has_a_hash_for_each_whole_block() -> None:
    assert len(block_hashes(PROMPT + b"rest of a block", SIZE, SEED)) == 4
    assert block_hashes(PROMPT[:32], SIZE, SEED) == HASHES[:2]
    assert block_hashes(PROMPT[32:], SIZE, HASHES[1]) == HASHES[2:]
    assert block_hashes(PROMPT, SIZE, SEED + 1)[0] != HASHES[0]


def test_each_instance_matches_with_its_longest_prefix(index: ExactIndex) -> None:
    index.store("a", [1, 2, 3, 4], None, PROMPT, SIZE)
    index.store("b", [1, 2], None, PROMPT[:32], SIZE)
    index.store("c", [7], None, PROMPT[16:32], SIZE)
    assert index.match(HASHES, SIZE) == {"a": (16, 0, 0), "b": (8, 0, 0)}
    assert index.match(HASHES[:1], SIZE) == {"a": (4, 0, 0), "b": (4, 0, 0)}
    assert index.match([], SIZE) == {}


def test_a_chain_continues_from_the_parent_in_the_event(index: ExactIndex) -> None:
    index.store("a", [1, 2], None, PROMPT[:32], SIZE)
    index.store("a", [3, 4], 2, PROMPT[32:], SIZE)
    assert index.match(HASHES, SIZE) == {"a": (16, 0, 0)}


def test_blocks_whose_parent_was_never_reported_are_counted_and_ignored(index: ExactIndex) -> None:
    index.store("a", [3, 4], 2, PROMPT[32:], SIZE)
    assert (index.blocks("a"), index.unknown("a"), len(index)) == ((0, 0, 0), 2, 0)


def test_a_block_counts_on_the_fastest_tier_that_has_it(index: ExactIndex) -> None:
    index.store("a", [1, 2, 3, 4], None, PROMPT, SIZE)
    index.store("a", [2, 3], None, b"", SIZE, HOST)
    index.store("a", [3, 4], None, b"", SIZE, DISK)
    index.drop("a", [4, 3, 2])
    assert index.match(HASHES, SIZE) == {"a": (4, 8, 4)}
    index.drop("a", [3], HOST)
    assert index.match(HASHES, SIZE) == {"a": (4, 4, 8)}
    assert index.blocks("a") == (1, 1, 2)


def test_a_block_that_left_all_tiers_is_forgotten(index: ExactIndex) -> None:
    index.store("a", [1], None, PROMPT[:16], SIZE)
    index.store("a", [1], None, b"", SIZE, HOST)
    index.drop("a", [1], DEVICE)
    index.drop("a", [1], HOST)
    index.store("a", [1], None, b"", SIZE, HOST)
    assert (index.unknown("a"), len(index)) == (1, 0)


def test_the_second_copy_of_a_block_outlives_the_first(index: ExactIndex) -> None:
    for _ in range(3):
        index.store("a", [1], None, PROMPT[:16], SIZE)
    index.drop("a", [1])
    index.drop("a", [1])
    assert index.match(HASHES, SIZE) == {"a": (4, 0, 0)}
    index.drop("a", [1])
    assert index.match(HASHES, SIZE) == {}


@pytest.mark.parametrize(
    ("remaining", "left"),
    [([{1: 0}], 0), ([{1: 2}], 2), ([{1: 1}, {1: 0}], 0), ([{1: 1}, [1]], 0), ([{1: 5}], 5), ([{7: 3}], 3)],
)
def test_a_block_stays_until_the_engine_reports_that_its_last_copy_is_gone(
    index: ExactIndex, remaining: list[Any], left: int
) -> None:
    """The engine reports three copies, whatever was counted before."""
    for _ in range(3):
        index.store("a", [1], None, PROMPT[:16], SIZE)
    for names in remaining:
        index.drop("a", names)
    assert index.match(HASHES, SIZE) == ({"a": (4, 0, 0)} if left else {})
    for _ in range(left):
        assert index.match(HASHES, SIZE)
        index.drop("a", [1])
    assert (index.match(HASHES, SIZE), index.held, index._part("a").forecast.held) == ({}, 0, 0)


def test_an_answer_refutes_a_copy_with_an_unreported_removal_but_neither_others_nor_the_last_block(
    index: ExactIndex,
) -> None:
    for _ in range(2):
        index.store("a", [1, 2, 3], None, PROMPT[:48], SIZE)
    index.store("a", [4], 3, PROMPT[48:64], SIZE)
    index.drop("a", [3, 2, 1])  # the last copies; this engine reports no other removals
    index.refute("a", HASHES[:4], 3)
    assert index.match(HASHES, SIZE) == {"a": (16, 0, 0)}
    index.refute("a", HASHES[:4], 1)
    assert index.match(HASHES, SIZE) == {"a": (4, 0, 0)}
    index.refute("a", HASHES[:4], 0)
    assert (index.match(HASHES, SIZE), index.held, index._part("a").forecast.held) == ({}, 2, 2)


def test_an_answer_refutes_no_copies_that_were_stored_after_its_prompt_was_looked_up(index: ExactIndex) -> None:
    """Two prompts with the same beginning arrive at once: each expects the other's blocks, and both compute them."""
    asked_at = time.monotonic()
    for _ in range(2):
        index.store("a", [1, 2, 3], None, PROMPT[:48], SIZE)
    index.refute("a", HASHES[:4], 0, asked_at)
    assert index.match(HASHES, SIZE) == {"a": (12, 0, 0)}
    index.refute("a", HASHES[:4], 0, time.monotonic())
    assert index.match(HASHES, SIZE) == {}


def test_copies_are_counted_on_each_tier(index: ExactIndex) -> None:
    for tier in (DEVICE, HOST, DEVICE, HOST):
        index.store("a", [1], None, PROMPT[:16], SIZE, tier)
    index.drop("a", {1: 0}, DEVICE)
    assert index.match(HASHES, SIZE) == {"a": (0, 4, 0)}
    index.drop("a", [1], HOST)
    assert index.match(HASHES, SIZE) == {"a": (0, 4, 0)}
    index.drop("a", {1: 0}, HOST)
    assert index.match(HASHES, SIZE) == {}


def test_blocks_with_different_hashed_extras_are_separate(index: ExactIndex) -> None:
    index.store("a", [1, 2], None, PROMPT[:32], SIZE, extras=(b"", b"adapter"))
    assert index.match(HASHES, SIZE) == {"a": (4, 0, 0)}


def test_a_name_that_is_reused_for_other_tokens_leaves_nothing_behind(index: ExactIndex) -> None:
    index.store("a", [1], None, PROMPT[:16], SIZE)
    index.store("a", [1], None, PROMPT[16:32], SIZE)
    assert index.match(HASHES, SIZE) == {}
    assert (index.blocks("a"), index.held, len(index)) == ((1, 0, 0), 1, 1)


def test_a_full_index_is_reported(index: ExactIndex) -> None:
    index = ExactIndex(SEED, max_blocks=3)
    index.store("a", [1, 2, 3], None, PROMPT[:48], SIZE)
    with pytest.raises(IndexFull, match="it holds 3 blocks and may hold 3"):
        index.store("b", [1], None, PROMPT[:16], SIZE)


def test_memory_is_released_when_instances_leave(index: ExactIndex) -> None:
    tokens = b"".join(number.to_bytes(4, "little") for number in range(80_000))
    index.store("a", list(range(1, 20_001)), None, tokens, SIZE)
    full = index.bytes
    assert full / 20_000 < 100
    index.clear("a")
    while index.sweep(1_000):
        pass
    assert index.bytes < full / 5
