"""The cost of asking for the rules by which engines with several groups of layers speculate, and the conditions for
asking."""

import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pool.kv_event_state import MOST_PASSED, KvEventState
from router.prefix.accuracy_by_kind import ASKS, MOST_UNASKED, AccuracyByKind
from router.prefix.blocks import block_hashes
from router.prefix.exact.groups import ALL, FIRST, NONE, GroupNeed, GroupNeeds, rules_of
from router.prefix.exact.holders import FURTHER
from router.prefix.exact.index import HOST, ExactIndex

SIZE, SEED = 4, 3
NEEDS = st.sampled_from(
    [
        GroupNeeds((GroupNeed(2, drafts=True),)),
        GroupNeeds((GroupNeed(3, drafts=True), GroupNeed(1))),
        GroupNeeds((GroupNeed(2, step=2, drafts=True),)),
        GroupNeeds((GroupNeed(2, drafts=True),), rooted=False),
    ]
)


def prompt(blocks: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(4 * SIZE * blocks)


def hold(index: ExactIndex, instance: str, tokens: bytes, needs: GroupNeeds, kept: list[int]) -> None:
    """Let the instance hold a prompt, but of the last blocks only those that `kept` names by further group."""
    names = list(range(1, len(tokens) // SIZE // 4 + 1))
    index.need(instance, needs)
    if needs.rooted:
        index.store(instance, names, None, tokens, SIZE)
    for group, end in zip(range(len(needs.needs)), kept, strict=False):
        own = b"" if needs.rooted else tokens
        index.store(instance, names, None, own, SIZE, FURTHER + group)
        index.drop(instance, names[end:], FURTHER + group)


@given(
    NEEDS, st.integers(1, 20), st.lists(st.integers(0, 20), min_size=2, max_size=2), st.integers(0, 25), st.booleans()
)
def test_an_instance_is_asked_what_a_look_up_finds_by_each_rule_whatever_was_expected(
    needs: GroupNeeds, blocks: int, kept: list[int], expected: int, below: bool
) -> None:
    index, tokens = ExactIndex(SEED), prompt(20)
    for instance in ("other", "a"):
        hold(index, instance, tokens[: blocks * 4 * SIZE], needs, kept)
    if below and needs.rooted:
        index.store("a", [1, 2], None, b"", SIZE, HOST)
    hashes = block_hashes(tokens, SIZE, SEED)
    rules = [rules_of({rule: -1} if rule else {}) for rule in (NONE, FIRST, ALL)]
    found = tuple(sum(index.match(hashes, SIZE, rules=rule).get("a", ())) for rule in rules)
    assert index.by_rule("a", hashes, SIZE, expected=expected) == found


def test_an_engine_is_asked_less_often_while_its_answers_teach_nothing() -> None:
    known, asked = AccuracyByKind(), []
    for number in range(200):
        known.suspect()
        if known.asks:
            asked.append(number)
            known.asks = 0
    assert asked[:4] == [0, 2, 6, 14]
    assert asked[-1] - asked[-2] == MOST_UNASKED
    known.has_learnt()
    known.suspect()
    assert known.asks == ASKS


def test_a_suspicion_while_an_engine_is_asked_changes_nothing() -> None:
    known = AccuracyByKind()
    known.suspect()
    known.asks -= 1
    known.suspect()
    assert known.asks == ASKS - 1


def calls(work: Callable[[], object]) -> int:
    """Return the number of calls of our functions."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += (
            event == "call" and "/router/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename
        )

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def learning(instances: int, blocks: int) -> tuple[int, int, int]:
    """Play 64 requests to engines that speculate alike, hold the prompt and are chosen in turn. Return (calls of the
    look-ups, look-ups that ask for the rule, engines whose rule was learned)."""
    needs, tokens, index = GroupNeeds((GroupNeed(4, drafts=True),)), prompt(blocks), ExactIndex(SEED)
    kinds = [AccuracyByKind() for _ in range(instances)]
    for number in range(instances):
        hold(index, f"a{number}", tokens, needs, [blocks])
    hashes = block_hashes(tokens, SIZE, SEED)
    state, looked_up, asked = KvEventState(), 0, 0
    for number in range(64):
        name, known = f"a{number % instances}", kinds[number % instances]
        found: dict[str, tuple[int, int, int]] = {}
        learnt = state.rules.get("a", {})
        rules = index.rules(learnt)
        looked_up += calls(lambda: found.update(index.look_up(hashes, SIZE, 0.0, rules=rules)))  # noqa: B023
        predicted = found[name][0]
        by_rule = index.by_rule(name, hashes, SIZE)
        rule = known.of("a").speculation
        if known.asks:
            known.asks -= 1
            asked += calls(lambda: index.by_rule(name, hashes, SIZE, expected=predicted // SIZE))  # noqa: B023
            rule.add(by_rule, by_rule[ALL], learnt.values())
        if rule.rule != learnt.get(name, NONE):
            state.learnt("a", name, rule.rule)
            known.has_learnt()
        elif by_rule[ALL] != predicted:
            state.suspect("a", known)
    return looked_up, asked, len(state.rules.get("a", {}))


@pytest.mark.parametrize("blocks", [16, 64, 1_000])
@pytest.mark.parametrize(("instances", "learnt"), [(1, 1), (8, 8), (100, 0)])
def test_asking_costs_a_tenth_of_the_look_ups_of_64_requests_at_most(instances: int, blocks: int, learnt: int) -> None:
    looked_up, asked, rules = learning(instances, blocks)
    assert (rules, asked > 0) == (learnt, learnt > 0)
    assert asked <= looked_up / 10, f"{asked} calls to ask, {looked_up} to look up"


def test_one_instance_is_asked_at_a_time_until_one_has_learnt_a_rule() -> None:
    state, first, other = KvEventState(), AccuracyByKind(), AccuracyByKind()
    state.suspect("a", first)
    state.suspect("a", other)
    assert (first.asks, other.asks) == (ASKS, 0)
    state.learnt("a", "first", ALL)
    state.suspect("a", other)
    assert other.asks == ASKS


def test_an_instance_without_requests_does_not_keep_others_from_being_asked() -> None:
    state, idle, other = KvEventState(), AccuracyByKind(), AccuracyByKind()
    state.suspect("a", idle)
    for _ in range(MOST_PASSED):
        state.suspect("a", other)
    assert other.asks == ASKS
