"""Forecasts, case by case, of the blocks that an instance will hold when a request is admitted."""

import random

import pytest

from router.prefix.blocks import block_hashes
from router.prefix.exact.index import HOST, ExactIndex
from router.prefix.exact.stretches import summed
from router.prefix.forecast.cache_forecast import LATE_S, InFlight

SEED = 7
SIZE = 4
NOW = 100.0  # s


def prompt(letter: str, blocks: int) -> bytes:
    return letter.encode() * (16 * blocks)


def hashes(tokens: bytes) -> list[int]:
    return block_hashes(tokens, SIZE, SEED)


class Engine:
    """Applies an instance's events to the index."""

    def __init__(self, index: ExactIndex, room: int) -> None:
        self.index = index
        index.limit("a", room)

    def holds(self, tokens: bytes, start: int = 0) -> None:
        names = hashes(tokens)
        parent = names[start - 1] if start else None
        self.index.store("a", names[start:], parent, tokens[16 * start :], SIZE)

    def evicts(self, tokens: bytes, start: int) -> None:
        self.index.drop("a", hashes(tokens)[start:][::-1])


@pytest.fixture
def index() -> ExactIndex:
    return ExactIndex(SEED)


@pytest.fixture
def engine(index: ExactIndex) -> Engine:
    return Engine(index, 10)


def foreseen(index: ExactIndex, tokens: bytes, now: float = NOW) -> int:
    """Return the number of blocks of the prompt that the instance will hold."""
    matched = index.match(hashes(tokens), SIZE)
    return sum((matched | index.foreseen(matched, hashes(tokens), SIZE, now)).get("a", (0, 0, 0))) // SIZE


def send(index: ExactIndex, tokens: bytes) -> InFlight:
    return index.sent("a", hashes(tokens), foreseen(index, tokens))


def test_without_requests_in_flight_the_forecast_is_the_present_content(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 4))
    assert foreseen(index, prompt("x", 6)) == 4
    assert index.foreseen(index.match(hashes(prompt("x", 6)), SIZE), hashes(prompt("x", 6)), SIZE, NOW) == {}


def test_blocks_that_a_running_request_computes_count_as_held(index: ExactIndex, engine: Engine) -> None:
    send(index, prompt("x", 4))
    assert foreseen(index, prompt("x", 6)) == 4
    assert foreseen(index, prompt("y", 6)) == 0


def test_blocks_that_the_engine_reported_are_no_longer_expected(index: ExactIndex, engine: Engine) -> None:
    send(index, prompt("x", 4))
    engine.holds(prompt("x", 4))
    engine.evicts(prompt("x", 4), 1)
    assert foreseen(index, prompt("x", 4)) == 1


def test_blocks_that_are_reported_late_are_expected_for_a_second_after_the_answer(
    index: ExactIndex, engine: Engine
) -> None:
    send(index, prompt("x", 4)).over(NOW)
    assert foreseen(index, prompt("x", 4), NOW + LATE_S / 2) == 4
    assert foreseen(index, prompt("x", 4), NOW + LATE_S) == 0


def test_a_request_that_fails_takes_nothing_from_another_that_computes_the_same(
    index: ExactIndex, engine: Engine
) -> None:
    first = send(index, prompt("x", 4))
    send(index, prompt("x", 4))
    first.over(NOW)
    assert foreseen(index, prompt("x", 4), NOW + LATE_S) == 4


def test_evicted_blocks_that_are_computed_again_are_expected_after_the_first_request_is_forgotten(
    index: ExactIndex, engine: Engine
) -> None:
    first = send(index, prompt("x", 4))
    engine.holds(prompt("x", 4))
    first.over(NOW)
    engine.evicts(prompt("x", 4), 0)
    send(index, prompt("x", 4))
    assert foreseen(index, prompt("x", 4), NOW + LATE_S) == 4


def test_a_full_cache_loses_its_least_recently_used_blocks_to_requests_in_flight(
    index: ExactIndex, engine: Engine
) -> None:
    index.limit("a", 11)
    engine.holds(prompt("x", 5))
    engine.holds(prompt("y", 5))
    send(index, prompt("z", 5))
    assert foreseen(index, prompt("y", 5)) == 5
    assert foreseen(index, prompt("x", 5)) == 0


def test_a_chain_is_evicted_from_its_end(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 6))
    send(index, prompt("z", 6))
    assert foreseen(index, prompt("x", 6)) == 3  # 12 blocks and an incomplete one, with room for 10


def test_blocks_in_use_are_not_evicted_and_are_evicted_last_afterwards(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 4))
    engine.holds(prompt("y", 4))
    user = send(index, prompt("x", 4))
    send(index, prompt("z", 5))
    assert (foreseen(index, prompt("x", 4)), foreseen(index, prompt("y", 4))) == (4, 0)
    user.over(NOW)
    assert (foreseen(index, prompt("x", 4)), foreseen(index, prompt("y", 4))) == (4, 0)


def test_a_prompt_that_will_be_evicted_and_computed_again_will_be_held(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 6))
    send(index, prompt("z", 6))
    send(index, prompt("x", 6))
    assert foreseen(index, prompt("x", 6)) == 6
    engine.evicts(prompt("x", 6), 3)
    assert foreseen(index, prompt("x", 6)) == 6


def test_growing_answers_take_capacity_while_a_prompt_waits(index: ExactIndex, engine: Engine) -> None:
    index.limit("a", 11)
    first = send(index, prompt("x", 2))
    engine.holds(prompt("x", 2))
    engine.holds(prompt("x", 4), 2)  # its answer
    first.over(NOW)
    send(index, prompt("y", 5))
    engine.holds(prompt("y", 5))
    assert foreseen(index, prompt("x", 8)) == 4  # room for 5 beside y
    assert foreseen(index, prompt("x", 9)) == 3  # it needs 6, free once y has ended, 2 blocks longer


def test_a_prompt_whose_prefix_is_evicted_first_computes_it_again(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 6))
    send(index, prompt("x", 6))
    engine.evicts(prompt("x", 6), 4)
    assert foreseen(index, prompt("x", 6)) == 6


def test_a_prompt_that_hits_more_than_forecast_computes_less(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 6))
    other = send(index, prompt("z", 6))
    send(index, prompt("x", 8))
    other.over(NOW)
    engine.holds(prompt("x", 8), 6)
    send(index, prompt("y", 4))
    assert foreseen(index, prompt("x", 8), NOW + LATE_S) == 8  # in use, although z and y would not fit beside it


def test_shared_blocks_are_in_use_until_both_requests_end(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 4))
    first, second = send(index, prompt("x", 4)), send(index, prompt("x", 4))
    first.over(NOW)
    send(index, prompt("z", 9))
    assert foreseen(index, prompt("x", 4)) == 4
    second.over(NOW)
    assert foreseen(index, prompt("x", 4)) == 0


def test_without_a_known_capacity_no_eviction_is_forecast(index: ExactIndex) -> None:
    engine = Engine(index, 0)
    engine.holds(prompt("x", 6))
    send(index, prompt("z", 600))
    assert foreseen(index, prompt("x", 6)) == 6


def test_blocks_held_before_the_capacity_was_known_are_evicted_first(index: ExactIndex) -> None:
    engine = Engine(index, 0)
    engine.holds(prompt("x", 5))
    index.limit("a", 10)
    engine.holds(prompt("y", 4))
    send(index, prompt("z", 3))
    assert foreseen(index, prompt("y", 4)) == 4


def test_blocks_that_a_slower_tier_also_holds_stay(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 6))
    index.store("a", hashes(prompt("x", 6))[3:], None, b"", SIZE, HOST)
    engine.evicts(prompt("x", 6), 5)
    send(index, prompt("z", 10))
    assert foreseen(index, prompt("x", 6)) == 6


def test_a_cleared_instance_is_not_expected_to_hold_anything(index: ExactIndex, engine: Engine) -> None:
    engine.holds(prompt("x", 4))
    under_way = send(index, prompt("x", 6))
    index.clear("a")
    assert foreseen(index, prompt("x", 6)) == 0
    under_way.over(NOW)
    assert foreseen(index, prompt("x", 6)) == 0


def test_a_sample_of_blocks_represents_a_large_cache(index: ExactIndex) -> None:
    engine = Engine(index, 40_000)
    for letter in "abcd":
        engine.holds(prompt(letter, 10_000))
    send(index, prompt("z", 12_000))
    kept = [foreseen(index, prompt(letter, 10_000)) for letter in "abcd"]
    assert kept[0] == 0
    assert kept[1] == pytest.approx(8_000, abs=500)
    assert kept[2:] == [10_000, 10_000]


def act(rng: random.Random, index: ExactIndex, under_way: list[InFlight], now: float) -> list[int]:
    """Perform a random action with a prompt; return the prompt."""
    chain, instance = prompt(rng.choice("xyz"), rng.randint(1, 6)), f"i{rng.randrange(6)}"
    what = rng.choices(("send", "end", "store", "clear"), (8, 4, 4, 1))[0]
    if what == "send":
        under_way.append(index.sent(instance, hashes(chain), 0))
    elif what == "end" and under_way:
        under_way.pop(rng.randrange(len(under_way))).over(now)
    elif what == "store":
        index.store(instance, hashes(chain), None, chain, SIZE)
    elif what == "clear":
        index.clear(instance)
        index.sweep(100)
    return hashes(chain)


def test_the_forecast_of_many_instances_equals_that_of_each_alone() -> None:
    rng, now, index = random.Random(5), NOW, ExactIndex(SEED)
    under_way: list[InFlight] = []
    for _ in range(400):
        now += rng.random() / 2
        chain = act(rng, index, under_way, now)
        held = index.match(chain, SIZE)
        told = held | index.foreseen(held, chain, SIZE, now)
        for name, part in index._parts.items():
            blocks = held.get(name, (0, 0, 0))[0] // SIZE
            assert told.get(name, (0, 0, 0))[0] == part.forecast.foreseen(chain, blocks, now) * SIZE
    for sent in under_way:
        sent.over(now)
    for letter in "xyz":
        foreseen(index, prompt(letter, 6), now + 2 * LATE_S)
    assert index._heads == {}


def test_only_holders_that_have_requests_in_flight_are_forecast(index: ExactIndex, engine: Engine) -> None:
    asked = hashes(prompt("x", 6))
    for name in ("a", *(f"other-{number}" for number in range(9))):
        index.limit(name, 10)
        index.store(name, asked[:4], None, prompt("x", 4), SIZE)
    matched, stretches = index.match(asked, SIZE), index.stretches(asked)
    assert len(matched) == 10
    assert summed(index.changing(stretches), SIZE, index.names) == {}

    under_way = send(index, prompt("y", 9))
    changing = summed(index.changing(stretches), SIZE, index.names)
    assert changing == {"a": matched["a"]}
    assert index.foreseen(matched, asked, SIZE, NOW) == index.foreseen(changing, asked, SIZE, NOW) != {}

    under_way.over(NOW)
    assert summed(index.changing(stretches), SIZE, index.names) == changing
    assert index.foreseen(matched, asked, SIZE, NOW + LATE_S) == {}
    assert summed(index.changing(stretches), SIZE, index.names) == {}


def test_a_restarted_instance_has_nothing_in_flight(index: ExactIndex, engine: Engine) -> None:
    asked = hashes(prompt("x", 4))
    engine.holds(prompt("x", 4))
    under_way = send(index, prompt("y", 9))
    index.clear("a")
    engine.holds(prompt("x", 4))
    under_way.over(NOW)
    assert index.changing(index.stretches(asked)) == [(4, (0, 0, 0))]
    assert foreseen(index, prompt("x", 4)) == 4
