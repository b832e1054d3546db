"""The content of one tier: chains, eviction between the watermarks, pins."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engine.tiers.cache import TierCache


def test_a_chain_counts_as_held_up_to_its_first_gap() -> None:
    cache = TierCache(1000)
    assert cache.put([1, 2, 3], 100) == [1, 2, 3]
    assert cache.put([2, 4], 100) == [4]
    assert cache.held([1, 2, 5, 3]) == 2
    assert cache.held([6]) == 0
    assert (cache.used, len(cache), 4 in cache) == (400, 4, True)


def test_the_least_recently_used_is_evicted_first_and_the_end_of_a_chain_before_its_start() -> None:
    cache = TierCache(500, high=0.8, low=0.6)
    cache.put([1, 2], 100)
    cache.put([3, 4], 100)
    assert cache.evict() == []
    assert cache.held([1, 2]) == 2
    cache.put([5], 100)
    assert cache.evict() == [4, 3]
    assert (cache.held([3, 4]), cache.held([1, 2]), cache.held([5])) == (0, 2, 1)
    assert (cache.used, cache.evicted) == (300, 2)


def test_a_block_that_never_fits_is_not_taken() -> None:
    cache = TierCache(50)
    assert cache.put([1], 100) == []
    assert (cache.used, cache.evicted, len(cache)) == (0, 0, 0)


def test_blocks_that_are_being_read_stay() -> None:
    cache = TierCache(4, high=0.5, low=0.25)
    cache.put([1, 2, 3])
    cache.pin([3, 2])
    cache.pin([3])
    cache.unpin([3])
    assert cache.evict() == [1]
    cache.unpin([3, 2])
    cache.put([4])
    assert cache.evict() == [3, 2]


@pytest.mark.parametrize("high", [0.9, 1.0])
@settings(max_examples=50)
@given(st.lists(st.tuples(st.lists(st.integers(0, 30), unique=True, max_size=6), st.integers(1, 5)), max_size=30))
def test_no_more_is_kept_than_fits(high: float, puts: list[tuple[list[int], int]]) -> None:
    cache = TierCache(20, high=high, low=0.7)
    for hashes, size in puts:
        cache.put(hashes, size)
        cache.evict()
        assert cache.used == sum(cache._sizes.values()) <= 20 * high
