"""The tokens of a prompt that instances hold are the same by level as instance by instance."""

import random

import pytest

from router.policy.fleet import FleetColumns
from router.policy.held import HeldByLevel, most
from router.policy.schema import document
from router.policy.types import InstanceState, RoutingRequest
from router.policy.view import cached_tokens
from router.pool.load.load_order import Load
from router.pool.shortlist import Shortlist, Traits
from router.prefix.approximate import FEW, PrefixIndex

NAMES = [f"i-{number}" for number in range(300)]
BITS = {name: 1 << number for number, name in enumerate(NAMES)}


def by_level(held: dict[str, int]) -> HeldByLevel:
    masks = {tokens: sum(BITS[name] for name, one in held.items() if one == tokens) for tokens in held.values()}
    return HeldByLevel(sorted(masks.items()), NAMES, BITS)


def drawn(draw: random.Random, most_holders: int) -> dict[str, int]:
    """Draw holders: most hold the beginning of the prompt, a few hold more and one holds all."""
    held = dict.fromkeys(draw.sample(NAMES, draw.randint(0, most_holders)), 512)
    held |= dict.fromkeys(draw.sample(NAMES, draw.randint(0, 40)), 1_536)
    return held | {draw.choice(NAMES): 9_000}


@pytest.mark.parametrize("most_holders", [5, 60, 300])
def test_held_tokens_equal_those_of_a_plain_dict(most_holders: int) -> None:
    draw = random.Random(most_holders)
    for _ in range(20):
        held = drawn(draw, most_holders)
        levels = by_level(held)
        assert dict(levels) == held
        assert levels == held
        assert len(levels) == len(held)
        assert most(levels) == most(held)
        assert [levels.get(name, 0) for name in NAMES] == levels.of(NAMES) == [held.get(name, 0) for name in NAMES]


def test_a_prompt_without_levels_is_held_by_no_instance() -> None:
    nothing = HeldByLevel([], NAMES, BITS)
    assert (dict(nothing), len(nothing), most(nothing), most({}), most(None)) == ({}, 0, 0, 0, 0)
    assert nothing.of(["i-1", "i-2"]) == [0, 0]
    assert nothing.get("i-1") is None


@pytest.mark.parametrize("name", ["i-2", "somebody else"])
def test_an_instance_that_holds_nothing_has_no_key(name: str) -> None:
    held = HeldByLevel([(512, BITS["i-1"])], NAMES, BITS)
    assert name not in held
    with pytest.raises(KeyError, match=name):
        held[name]


def test_levels_that_round_to_equal_tokens_are_merged() -> None:
    levels = HeldByLevel([(512, BITS["i-1"]), (512, BITS["i-2"]), (600, BITS["i-3"])], NAMES, BITS)
    assert levels.levels == [(512, BITS["i-1"] | BITS["i-2"]), (600, BITS["i-3"])]


@pytest.mark.parametrize("refused", [[""], ["", "", "", "draining"]])
@pytest.mark.parametrize("most_holders", [5, 60, 300])
def test_a_decision_sees_the_same_instances_and_tokens_by_level(most_holders: int, refused: list[str]) -> None:
    draw = random.Random(most_holders)
    shortlist = Shortlist([Traits(name, "both", "", "") for name in NAMES])
    tried = {"i-9": "it failed"} if len(refused) > 1 else {}
    shortlist.take((name, Load(draw.randrange(9_000), 1, 0.1, 9_000, draw.choice(refused))) for name in NAMES)
    policy = document.parse(document.default("priced"))
    fleet = FleetColumns(InstanceState(name) for name in NAMES)
    for _ in range(20):
        held = drawn(draw, most_holders)
        asked = [RoutingRequest(8_000, held=one) for one in (held, by_level(held))]
        first, second = (shortlist.listed(one, policy, tried, 0.3) for one in asked)
        assert first == second
        assert [*cached_tokens(asked[0], fleet)] == [*cached_tokens(asked[1], fleet)]


def test_a_look_up_stays_valid_when_another_instance_is_chosen() -> None:
    index, draw, before = PrefixIndex(), random.Random(1), []
    for _ in range(400):
        name = draw.choice(NAMES[: 2 * FEW])
        if draw.random() < 0.4:
            index.purge(name)
        else:
            index.insert(name, 1, [1, 2, 3, 4][: draw.randint(1, 4)])
        before.append((index.tokens([1, 2, 3, 4], 64), index.match([1, 2, 3, 4])))
    assert {type(held) for held, _ in before} == {dict, HeldByLevel}
    for held, chunks in before:
        assert dict(held) == {name: 64 * count for name, count in chunks.items()}
        assert [held.get(name, 0) for name in NAMES] == [64 * chunks.get(name, 0) for name in NAMES]
