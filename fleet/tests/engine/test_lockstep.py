"""Ranks that step together: in each step all wait for the slowest."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engine.engine import Engine
from fleet.engine.lockstep import Lockstep, rank_steps
from fleet.engine.request import EngineRequest
from fleet.tests.engine.builders import LAW, api_s, engine, request
from fleet.tests.engine.test_engine import SingleSteps, arrivals, asks

Plan = list[tuple[int, int, str, float]]
Times = list[float]


def test_a_prompt_on_one_rank_holds_up_the_decodes_of_the_others() -> None:
    talker, reader = request("talker", 100, 50), request("reader", 8000, 1)
    group = Lockstep([engine(ahead=False), engine(ahead=False)])
    group.engines[0].add_request(talker, 0.0)
    while not talker.generated:
        group.turn(group.next_turn_s() or 0.0)
    group.engines[1].add_request(reader, group.engines[0].clock_s - api_s(reader.prompt_tokens))
    assert group.turn(group.next_turn_s() or 0.0) == []
    beside, prompt = group.turn(group.next_turn_s() or 0.0)
    assert beside is not None
    assert prompt is not None
    assert beside.duration_s == prompt.duration_s == pytest.approx(LAW.prefill_s(8000))
    assert (beside.steps, talker.generated) == (1, 2)


def test_a_request_for_an_idle_rank_waits_for_the_step_of_the_others() -> None:
    long, short = request("long", 8000, 1), request("short", 100, 1)
    group = Lockstep([engine(), engine()])
    group.engines[0].add_request(long, 0.0)
    begun_s = group.next_turn_s() or 0.0
    group.turn(begun_s)
    group.engines[1].add_request(short, begun_s)
    group.advance(10.0)
    assert long.finished_s == pytest.approx(begun_s + LAW.prefill_s(8000))
    assert short.scheduled_s == long.finished_s


def test_a_group_with_one_busy_rank_is_as_fast_as_that_rank_alone() -> None:
    alone, one = engine(), request("a", 2000, 40)
    alone.add_request(one, 0.0)
    alone.advance(100.0)
    group, same = Lockstep([engine(), engine(), engine()]), request("a", 2000, 40)
    group.engines[1].add_request(same, 0.0)
    group.advance(100.0)
    assert (same.first_token_s, same.finished_s) == pytest.approx((one.first_token_s, one.finished_s))


def times(requests: list[tuple[float, EngineRequest]]) -> Times:
    return [
        figure
        for _, ask in requests
        for figure in (ask.first_token_s, ask.finished_s, ask.cached_tokens, ask.preemptions)
    ]


def by_turns(plan: Plan, engines: list[Engine]) -> Times:
    group, requests = Lockstep(engines), arrivals(plan)
    waiting = deque(enumerate(requests))
    while waiting or group.next_turn_s() is not None:
        due_s = group.next_turn_s()
        if waiting and (due_s is None or waiting[0][1][0] <= due_s):
            place, (now, ask) = waiting.popleft()
            engines[place % len(engines)].add_request(ask, now)
        else:
            group.turn(due_s or 0.0)
    return times(requests)


def by_ticks(plan: Plan, engines: list[Engine], tick_s: float) -> Times:
    """Drive each rank by itself, without information about the others."""
    ranks, requests, now = rank_steps(engines), arrivals(plan), 0.0
    due: dict[str, None] = {}

    def tick() -> None:
        for rank in ranks:
            for result in rank.advance(now):
                due.update(dict.fromkeys(one.id for one in result.finished))

    for place, (at, ask) in enumerate(requests):
        while now + tick_s < at:
            now += tick_s
            tick()
        engines[place % len(engines)].add_request(ask, at)
    while any(rank.next_event_s() is not None for rank in ranks):
        now += tick_s
        tick()
    tick()
    assert set(due) == {ask.id for _, ask in requests}, "each rank's steps are handed to it"
    return times(requests)


@settings(max_examples=60, deadline=None)
@given(asks, st.integers(20, 200), st.integers(1, 3), st.booleans())
def test_closed_forms_single_steps_and_ranks_driven_one_by_one_give_the_same(
    plan: Plan, blocks: int, ranks: int, ahead: bool
) -> None:
    def group() -> list[Engine]:
        return [engine(blocks, ahead=ahead) for _ in range(ranks)]

    turned = by_turns(plan, group())
    stepped = by_turns(plan, [SingleSteps(LAW, blocks, one.limits) for one in group()])
    assert turned == pytest.approx(stepped, rel=1e-9)
    assert by_ticks(plan, group(), 0.05) == pytest.approx(stepped, rel=1e-9)
