"""The engine step by step: chunks, batches, hits, preemption, aborts and the closed form over decode steps."""

import math
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engine.engine import Engine, RequestTooLong, StepResult
from fleet.engine.law import chunk_pairs
from fleet.engine.request import EngineRequest, run_s, steps_within
from fleet.tests.engine.builders import LAW, api_s, engine, request


def run(an_engine: Engine) -> list[StepResult]:
    results = []
    while (result := an_engine.step()) is not None:
        results.append(result)
    return results


def test_an_idle_engine_has_nothing_to_do() -> None:
    idle = engine()
    assert idle.next_event_s() is None
    assert idle.step() is None
    assert idle.advance(100.0) == []


def test_a_request_gets_its_tokens_and_its_times_follow_the_law() -> None:
    alone, ask = engine(), request("a", 1000, 3)
    alone.add_request(ask, 5.0)
    assert alone.next_event_s() == 5.0 + api_s(ask.prompt_tokens)
    prefill, second, third = run(alone)
    assert prefill.duration_s == pytest.approx(LAW.step_s(1000, chunk_pairs(1000, 0), 0, 0))
    assert second.duration_s == pytest.approx(LAW.step_s(1, 0, 1001, 1))
    assert ask.first_token_s == pytest.approx(5.0 + api_s(ask.prompt_tokens) + prefill.duration_s)
    assert (prefill.first, prefill.tokens, third.finished) == ([ask], {"a": 1}, [ask])
    assert (ask.generated, ask.finished_s) == (3, third.end_s)
    assert alone.stats().kv_usage == 0


def test_a_long_prompt_is_cut_into_chunks_of_the_token_budget() -> None:
    chunked = engine(blocks=2000)
    chunked.add_request(request("a", 20_000, 1), 0.0)
    results = run(chunked)
    assert [result.scheduled for result in results] == [8192, 8192, 3616]
    assert [len(result.first) for result in results] == [0, 0, 1]


def test_decodes_are_scheduled_first_and_the_prompt_takes_the_rest_of_the_budget() -> None:
    mixed, talker, reader = engine(batched=512, ahead=False), request("talker", 100, 50), request("reader", 1000, 1)
    mixed.add_request(talker, 0.0)
    mixed.step()
    mixed.add_request(reader, mixed.clock_s - api_s(reader.prompt_tokens))
    result = mixed.step()
    assert result is not None
    assert (result.scheduled, result.tokens) == (512, {"talker": 1})
    assert reader.computed == 511


def test_a_prompt_beside_decodes_makes_their_tokens_wait() -> None:
    mixed, talker, reader = engine(ahead=False), request("talker", 100, 50), request("reader", 8000, 1)
    mixed.add_request(talker, 0.0)
    mixed.step()
    alone = mixed.step()
    mixed.add_request(reader, mixed.clock_s - api_s(reader.prompt_tokens))
    beside = mixed.step()
    assert alone is not None
    assert beside is not None
    assert beside.duration_s > 10 * alone.duration_s


def test_no_more_requests_run_than_the_limit_allows() -> None:
    narrow = engine(seqs=2)
    for name in "abc":
        narrow.add_request(request(name, 100, 5), 0.0)
    narrow.step()
    assert (narrow.stats().running, narrow.stats().waiting) == (2, 1)
    finished = [done.id for result in run(narrow) for done in result.finished]
    assert finished == ["a", "b", "c"]


def test_a_shared_prefix_is_computed_once() -> None:
    sharing = engine()
    first, second = (request(name, 1000, 2, family="f", shared=800) for name in "ab")
    sharing.add_request(first, 0.0)
    run(sharing)
    sharing.add_request(second, 10.0)
    prefill = run(sharing)[0]
    assert (first.cached_tokens, second.cached_tokens, prefill.scheduled) == (0, 800, 200)
    assert (sharing.stats().cache_queries, sharing.stats().cache_hits) == (2000, 800)


@pytest.mark.parametrize(("prompt", "cached"), [(960, 944), (961, 960), (975, 960), (16, 0), (17, 16), (5, 0)])
def test_the_last_token_of_a_prompt_is_never_taken_from_the_cache(prompt: int, cached: int) -> None:
    """vLLM computes at least one token, and therefore the whole last block if the prompt ends with it."""
    repeated = engine()
    for now in (0.0, 10.0):
        ask = request("same", prompt, 1)
        repeated.add_request(ask, now)
        run(repeated)
    assert ask.cached_tokens == cached


def test_an_answer_is_part_of_the_next_prompts_prefix() -> None:
    talk = engine()
    chain = list(range(100))
    talk.add_request(EngineRequest("turn 1", 320, 161, chain), 0.0)
    run(talk)
    follow_up = EngineRequest("turn 2", 600, 4, chain)
    talk.add_request(follow_up, 100.0)
    run(talk)
    assert follow_up.cached_tokens == 480


def test_when_blocks_run_out_the_last_admitted_request_starts_over() -> None:
    tight = engine(blocks=20)
    first, second = request("first", 150, 60), request("second", 150, 60)
    tight.add_request(first, 0.0)
    tight.add_request(second, 0.0)
    results = run(tight)
    assert (first.preemptions, second.preemptions >= 1) == (0, True)
    assert tight.stats().preemptions == second.preemptions
    assert [done.id for result in results for done in result.finished] == ["first", "second"]
    assert [again.id for result in results for again, _ in result.resumed] == ["second"] * second.preemptions
    assert tight.stats().kv_usage == 0


def test_a_preempted_request_is_not_a_second_cache_query() -> None:
    tight = engine(blocks=20)
    for name in ("first", "second"):
        tight.add_request(request(name, 150, 60), 0.0)
    run(tight)
    assert tight.stats().cache_queries == 300


def test_a_prompt_waits_until_all_of_it_fits() -> None:
    tight = engine(blocks=20, batched=64)
    tight.add_request(request("a", 160, 40), 0.0)
    tight.add_request(request("b", 200, 1), 0.0)
    while tight.stats().running:
        assert tight.stats().running <= 1
        tight.step()
    assert tight.stats().preemptions == 0


def test_a_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(RequestTooLong, match="big: 330 tokens, the KV cache holds 320"):
        engine(blocks=20).add_request(request("big", 300, 30), 0.0)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_aborted_request_leaves_no_block_behind(steps: int) -> None:
    leaving = engine(batched=256)
    leaving.add_request(request("a", 600, 50), 0.0)
    leaving.add_request(request("b", 600, 50), 0.0)
    for _ in range(steps):
        leaving.step()
    leaving.next_event_s()
    aborted = leaving.abort("a")
    assert aborted is not None
    assert aborted.is_over
    assert leaving.abort("a") is None
    finished = [done.id for result in run(leaving) for done in result.finished]
    assert finished == ["b"]
    assert (leaving.stats().kv_usage, leaving.stats().running, leaving.stats().waiting) == (0, 0, 0)


def test_an_abort_in_the_middle_of_a_step_gets_no_token() -> None:
    leaving, ask = engine(), request("a", 600, 50)
    leaving.add_request(ask, 0.0)
    leaving.advance(api_s(ask.prompt_tokens) + 0.001)
    leaving.abort("a")
    assert [result.emitted for result in run(leaving)] == [[]]
    assert ask.generated == 0


@pytest.mark.parametrize(("ahead", "after"), [(False, 0), (True, 1)])
def test_a_request_that_arrives_during_a_step_joins_the_first_one_planned_after_it(ahead: bool, after: int) -> None:
    """The request joins the next step, or the step after that if the next one is already planned."""
    busy, late = engine(ahead=ahead), request("late", 100, 1)
    busy.add_request(request("a", 8000, 5), 0.0)
    busy.advance(0.02)
    busy.add_request(late, 0.02)
    results = [result for result in busy.advance(10.0) for _ in range(result.steps)]
    joined = [number for number, result in enumerate(results) if "late" in result.tokens]
    assert joined == [1 + after]
    assert late.scheduled_s == pytest.approx(results[after].end_s)


@pytest.mark.parametrize("ahead", [False, True])
def test_an_idle_engine_begins_at_once(ahead: bool) -> None:
    idle, first, second = engine(ahead=ahead), request("first", 8000, 1), request("second", 100, 1)
    idle.add_request(first, 0.0)
    idle.advance(0.02)
    idle.add_request(second, 0.02)  # nothing runs after the first request's only step
    idle.advance(10.0)
    assert second.scheduled_s == first.finished_s


asks = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 60), st.sampled_from("xyz"), st.floats(0, 2)), min_size=1, max_size=12
)


def arrivals(plan: list[tuple[int, int, str, float]]) -> list[tuple[float, EngineRequest]]:
    requests = [
        (now, request(f"r{i}", prompt, output, family=family, shared=prompt // 2))
        for i, (prompt, output, family, now) in enumerate(plan)
    ]
    return sorted(requests, key=lambda pair: pair[0])


@settings(max_examples=80, deadline=None)
@given(asks, st.integers(17, 60), st.integers(1, 4), st.sampled_from([8, 64, 8192]))
def test_every_request_ends_with_its_tokens_and_no_block_leaks(
    plan: list[tuple[int, int, str, float]], blocks: int, seqs: int, batched: int
) -> None:
    crowded = engine(blocks, seqs=seqs, batched=batched)
    requests = arrivals(plan)
    for now, ask in requests:
        crowded.advance(now)
        crowded.add_request(ask, now)
    for result in run(crowded):
        assert result.scheduled <= batched
    for _, ask in requests:
        assert ask.generated == ask.output_tokens
        assert ask.arrived_s <= ask.scheduled_s <= ask.first_token_s <= ask.finished_s
        assert ask.cached_tokens < ask.prompt_tokens
    assert crowded.pool.free == crowded.pool.total


@settings(max_examples=80, deadline=None)
@given(asks, st.sets(st.integers(0, 11)), st.integers(17, 40))
def test_aborts_at_any_time_leak_no_blocks(
    plan: list[tuple[int, int, str, float]], leaving: set[int], blocks: int
) -> None:
    crowded = engine(blocks, seqs=3, batched=64)
    requests = arrivals(plan)
    for index, (now, ask) in enumerate(requests):
        crowded.advance(now)
        crowded.add_request(ask, now)
        if index in leaving:
            crowded.abort(requests[index // 2][1].id)
    run(crowded)
    assert all(ask.is_over for _, ask in requests)
    assert crowded.pool.free == crowded.pool.total


class SingleSteps(Engine):
    """An engine without closed forms: every step is planned and completed."""

    def coming_run(self) -> None:
        return None


def outcome(
    plan: list[tuple[int, int, str, float]], blocks: int, tick_s: float, ahead: bool = True
) -> list[tuple[float, ...]]:
    """Return the outcome; with `tick_s` 0, play by single steps."""
    one, requests, now = engine(blocks, ahead=ahead), arrivals(plan), 0.0
    if not tick_s:
        one, tick_s = SingleSteps(LAW, blocks, one.limits), 0.05
    for at, ask in requests:
        while now + tick_s < at:
            now += tick_s
            one.advance(now)
        one.add_request(ask, at)
    while one.next_event_s() is not None:
        now += tick_s
        one.advance(now)
    return [(ask.first_token_s, ask.finished_s, ask.cached_tokens, ask.preemptions) for _, ask in requests]


@settings(max_examples=80, deadline=None)
@given(asks, st.integers(20, 200), st.sampled_from([0.05, 10.0]), st.booleans())
def test_runs_in_closed_form_equal_single_steps(
    plan: list[tuple[int, int, str, float]], blocks: int, tick_s: float, ahead: bool
) -> None:
    """Same tokens, hits and preemptions, and the same times except for rounding."""
    for jumped, stepped in zip(outcome(plan, blocks, tick_s, ahead), outcome(plan, blocks, 0, ahead), strict=True):
        assert jumped == pytest.approx(stepped, rel=1e-9)


def by_turns(plan: list[tuple[int, int, str, float]], blocks: int, ahead: bool) -> list[tuple[float, ...]]:
    one, requests = engine(blocks, ahead=ahead), arrivals(plan)
    waiting = deque(requests)
    while waiting or one.next_turn_s() is not None:
        due_s = one.next_turn_s()
        if waiting and (due_s is None or waiting[0][0] <= due_s):
            now, ask = waiting.popleft()
            one.add_request(ask, now)
        else:
            one.turn(due_s)
    return [(ask.first_token_s, ask.finished_s, ask.cached_tokens, ask.preemptions) for _, ask in requests]


@settings(max_examples=80, deadline=None)
@given(asks, st.integers(20, 200), st.booleans())
def test_an_engine_that_is_called_only_when_due_gives_the_same(
    plan: list[tuple[int, int, str, float]], blocks: int, ahead: bool
) -> None:
    for called, stepped in zip(by_turns(plan, blocks, ahead), outcome(plan, blocks, 0, ahead), strict=True):
        assert called == pytest.approx(stepped, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(asks, st.floats(0.01, 3))
def test_the_usage_at_a_moment_includes_the_steps_until_then(
    plan: list[tuple[int, int, str, float]], at_s: float
) -> None:
    usages = []
    for advances in (True, False):
        one, requests = engine(400), deque(arrivals(plan))
        while (due_s := one.next_turn_s()) is not None or requests:
            coming_s = requests[0][0] if requests else math.inf
            if min(coming_s, due_s if due_s is not None else math.inf) > at_s:
                break
            if due_s is None or coming_s <= due_s:
                one.add_request(requests.popleft()[1], coming_s)
            else:
                one.turn(due_s)
        if advances:
            one.advance(at_s)
        usages.append(one.pool.usage if advances else one.usage_at(at_s))
    assert usages[0] == pytest.approx(usages[1])


def test_a_request_that_ends_a_run_returns_its_blocks_after_the_others_took_theirs() -> None:
    """Otherwise evictions, and therefore later hits, would differ from those of single steps."""
    plan = [(1, 21, "x", 0.0), (1, 21, "x", 0.0), (110, 21, "x", 0.0), (112, 18, "y", 0.0)]
    for jumped, stepped in zip(outcome(plan, 20, 0.05), outcome(plan, 20, 0), strict=True):
        assert jumped == pytest.approx(stepped, rel=1e-9)


def test_a_long_answer_alone_is_one_jump() -> None:
    alone = engine()
    alone.add_request(request("a", 100, 2000), 0.0)
    assert [result.steps for result in alone.advance(math.inf)] == [1, 1999]


@given(st.floats(0, 100), st.floats(0.001, 0.1), st.floats(0, 0.001))
def test_steps_within_a_span_are_as_many_as_fit(span: float, first: float, growth: float) -> None:
    steps = steps_within(span, first, growth)
    assert steps == 0 or run_s(steps, first, growth) <= span * (1 + 1e-12)
    assert run_s(steps + 1, first, growth) > span * (1 - 1e-12)


def test_a_late_arrival_queues_behind_those_before_it() -> None:
    late, first = request("late", 100, 1), request("first", 100, 1)
    queue = engine()
    queue.add_request(first, 1.0)
    queue.add_request(late, 0.9)
    assert (late.arrived_s, late.ready_s) == (0.9, first.ready_s)
    assert [result.emitted for result in run(queue)] == [[first, late]]
