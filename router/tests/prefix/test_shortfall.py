"""Hits that are shorter than an engine's blocks allow, as on engines that speculate."""

import pytest

from router.prefix.exact.groups import ALL, FIRST, NONE
from router.prefix.exact.stretches import Tokens
from router.prefix.shortfall import MOST_BLOCKS, SURE, Shortfall, SpeculationRule
from router.request.predict import _within


def learnt(*pairs: tuple[int, int]) -> int:
    shortfall = Shortfall()
    for allowed, actual in pairs:
        shortfall.add(allowed, actual, 16)
    return shortfall.tokens


def test_an_eviction_shown_by_several_consecutive_answers_is_expected_again() -> None:
    short = [(160, 144), (320, 304), (48, 32), (16, 0)]
    assert len(short) == SURE
    assert (learnt(*short[1:]), learnt(*short), learnt(*short, (0, 0), (64, 64))) == (0, 16, 16)


def test_complete_hits_end_a_shortfall() -> None:
    assert learnt(*[(160, 144)] * SURE, *[(160, 160)] * SURE) == 0


def test_evicted_blocks_are_not_a_shortfall() -> None:
    most = MOST_BLOCKS * 16
    assert learnt(*[(160, 160 - most - 16)] * 10) == learnt(*[(160, 144), (160, 160)] * 10) == 0
    assert learnt(*[(160, 176)] * 10) == 0


def rule_of(*answers: tuple[tuple[int, int, int], int]) -> int:
    learnt = SpeculationRule()
    for by_rule, actual in answers:
        learnt.add(by_rule, actual)
    return learnt.rule


def test_an_engine_drops_blocks_by_the_rule_that_explains_its_answers() -> None:
    first, every, neither = ((160, 144, 144), 144), ((160, 144, 128), 128), ((160, 144, 128), 16)
    silent = ((64, 64, 64), 64)
    assert rule_of(*[first] * (SURE - 1)) == rule_of(*[silent, neither] * 10) == NONE
    assert rule_of(*[first, silent, neither] * SURE) == FIRST
    assert rule_of(*[first] * SURE, every) == ALL
    assert rule_of(*[first] * SURE, *[((160, 144, 144), 160)] * SURE) == NONE
    assert rule_of(*[first, ((160, 144, 144), 160)] * 20) == NONE


@pytest.mark.parametrize(
    ("held", "reach", "found"),
    [
        ((160, 0, 0), (16, 0), (144, 0, 0)),
        ((16, 96, 0), (0, 64), (16, 48, 0)),  # up to the end of the first chunk
        ((0, 64, 32), (0, 64), (0, 64, 0)),
        ((0, 32, 96), (0, 64), (0, 32, 96)),
        ((80, 16, 0), (0, 64), (80, 0, 0)),  # the device holds more than the chunk does
        ((160, 0, 0), (0, 64), (160, 0, 0)),
    ],
)
def test_a_hit_beyond_the_device_ends_with_a_whole_chunk(held: Tokens, reach: tuple[int, int], found: Tokens) -> None:
    assert _within({"a": held, "b": (16, 16, 0)}, {"a": reach, "c": (16, 0)}) == {"a": found, "b": (16, 16, 0)}
