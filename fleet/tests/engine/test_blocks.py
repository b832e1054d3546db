"""The block pool: references, prefix hits and eviction."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.engine.blocks import BlockPool, Cleared, OutOfBlocks, Removed, Stored


def stored(pool: BlockPool, *chain: int) -> list[int]:
    blocks = pool.allocate(len(chain))
    pool.store(blocks, chain, 0, len(chain))
    return blocks


def test_a_released_prefix_is_hit_until_it_is_evicted() -> None:
    pool = BlockPool(4)
    blocks = stored(pool, 1, 2, 3)
    pool.release(blocks)
    assert pool.free == 4
    assert pool.hit((1, 2, 3, 4), 9) == blocks
    pool.allocate(2)
    assert pool.hit((1, 2, 3, 4), 9) == blocks[:2]


def test_a_hit_ends_at_the_first_block_that_is_missing() -> None:
    pool = BlockPool(8)
    blocks = stored(pool, 1, 2, 3)
    assert pool.hit((1, 7, 3), 9) == blocks[:1]
    assert pool.hit((1, 2, 3), 2) == blocks[:2]


def test_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    blocks = stored(pool, 1, 2, 3)
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert pool.allocate(1) == [blocks[1]]


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(4)
    old, new = stored(pool, 1, 2), stored(pool, 5, 6)
    pool.release(old)
    pool.release(new)
    again = pool.hit((1, 2), 2)
    pool.take(again)
    pool.release(again)
    assert set(pool.allocate(2)) == set(new)


def test_blocks_without_content_are_taken_before_any_cached_one() -> None:
    pool = BlockPool(4)
    cached = stored(pool, 1, 2)
    pool.release(cached)
    blank = pool.allocate(2)
    pool.release(blank)
    assert set(pool.allocate(2)) == set(blank)


def test_a_shared_block_stays_until_its_last_user_releases_it() -> None:
    pool = BlockPool(2)
    blocks = stored(pool, 1, 2)
    pool.take(blocks)
    pool.release(blocks)
    assert pool.free == 0
    pool.release(blocks)
    assert pool.free == 2


def test_two_copies_of_one_content_are_hit_until_both_are_evicted() -> None:
    pool = BlockPool(2)
    first, second = stored(pool, 1), stored(pool, 1)
    pool.release(first)
    assert pool.allocate(1) == first
    assert pool.hit((1,), 1) == second
    pool.release(second)
    assert pool.allocate(1) == second
    assert pool.hit((1,), 1) == []


def test_a_request_for_more_blocks_than_are_free_takes_none() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(OutOfBlocks, match="2 blocks requested, 1 of 3 free"):
        pool.allocate(2)
    assert pool.free == 1


def test_events_name_stored_and_removed_blocks() -> None:
    pool = BlockPool(2, record_events=True)
    blocks = pool.allocate(2)
    pool.store(blocks, (1, 2), 0, 1, "tokens")
    pool.store(blocks, (1, 2), 1, 2, "tokens")
    pool.release(blocks)
    pool.allocate(1)
    assert pool.take_events() == [Stored((1,), None, 0, "tokens"), Stored((2,), 1, 1, "tokens"), Removed((2,))]
    assert pool.take_events() == []


def test_clearing_forgets_everything_but_only_when_nothing_is_in_use() -> None:
    pool = BlockPool(3, record_events=True)
    blocks = stored(pool, 1, 2)
    assert not pool.clear()
    pool.release(blocks)
    assert pool.clear()
    assert pool.hit((1, 2), 2) == []
    assert pool.take_events()[-1] == Cleared()
    assert len(set(pool.allocate(3))) == 3


class Pool(RuleBasedStateMachine):
    """A pool whose requests take, share, fill and return blocks in any order."""

    @initialize(blocks=st.integers(1, 12))
    def build(self, blocks: int) -> None:
        self.pool = BlockPool(blocks, record_events=True)
        self.held: list[tuple[list[int], tuple[int, ...]]] = []
        self.content: dict[int, tuple[int, ...]] = {}  # block → the prefix that it ends
        self.known: dict[int, int] = {}  # hash → copies, by events

    @rule(chain=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def admit(self, chain: list[int]) -> None:
        keys = tuple(hash(tuple(chain[: i + 1])) for i in range(len(chain)))
        hits = self.pool.hit(keys, len(keys))
        assert self.pool.held(keys) == len(hits)
        for index, block in enumerate(hits):
            assert self.content[block] == tuple(chain[: index + 1])
        if len(keys) - len(hits) + self.pool.idle_among(hits) > self.pool.free:
            return
        self.pool.take(hits)
        fresh = self.pool.allocate(len(keys) - len(hits))
        in_use = {block for blocks, _ in self.held for block in blocks} | set(hits)
        assert not in_use & set(fresh)
        blocks = hits + fresh
        self.pool.store(blocks, keys, len(hits), len(keys))
        self.content.update({block: tuple(chain[: index + 1]) for index, block in enumerate(blocks)})
        self.held.append((blocks, keys))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        blocks, keys = self.held.pop(index)
        self.pool.release(blocks)
        assert self.pool.hit(keys, len(keys)) != []

    @invariant()
    def blocks_in_use_are_those_held(self) -> None:
        in_use = {block for blocks, _ in self.held for block in blocks}
        assert self.pool.free == self.pool.total - len(in_use)

    @invariant()
    def events_add_up_to_what_can_be_hit(self) -> None:
        for event in self.pool.take_events():
            for key in getattr(event, "hashes", ()):
                self.known[key] = self.known.get(key, 0) + (1 if isinstance(event, Stored) else -1)
        for key, copies in self.known.items():
            assert bool(self.pool.hit((key,), 1)) == (copies > 0)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=10))
def test_all_blocks_are_free_once_all_are_returned(sizes: list[int]) -> None:
    pool = BlockPool(50)
    taken = [pool.allocate(size) for size in sizes]
    assert len({block for blocks in taken for block in blocks}) == sum(sizes)
    for blocks in taken:
        pool.release(blocks)
    assert (pool.free, pool.usage) == (50, 0)
