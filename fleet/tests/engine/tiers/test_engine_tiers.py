"""An engine with tiers below HBM, played event by event."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engine.blocks import Removed, Stored
from fleet.engine.engine import Engine, StepResult
from fleet.engine.law import API_S, chunk_pairs
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.devices import DEVICES, DRAM, NAIVE_SHARE, SSD, SSD_TUTTI
from fleet.engine.tiers.loading import load_s, prefill_s, store_s
from fleet.engine.tiers.model import TiersModel, TiersStats, TierStats
from fleet.tests.engine.builders import LAW, engine, request
from fleet.tests.engine.tiers.builders import BLOCK_BYTES, LAYOUT, document, tiers, with_device

PROMPT = 4096


def run(an_engine: Engine) -> list[StepResult]:
    results = []
    while (result := an_engine.step()) is not None:
        results.append(result)
    return results


def stats(an_engine: Engine, now_s: float | None = None) -> TiersStats:
    found = an_engine.stats(now_s).tiers
    assert found is not None
    return found


def tier(an_engine: Engine, number: int = 0) -> TierStats:
    return stats(an_engine).tiers[number]


def ask(an_engine: Engine, *requests: EngineRequest, at: float) -> list[StepResult]:
    for one in requests:
        an_engine.add_request(one, at)
    return run(an_engine)


def evict(an_engine: Engine, at: float) -> None:
    """Fill HBM with other content."""
    ask(an_engine, request(f"filler at {at}", an_engine.pool.total * 16 - 1, 1), at=at)


def asked_twice(model: TiersModel, *, blocks: int = 300, again_s: float = 100.0) -> tuple[Engine, EngineRequest]:
    """Ask about a document, evict it from HBM, and ask again."""
    one = engine(blocks, tiers=model)
    ask(one, document("first", PROMPT, of="d"), at=0.0)
    evict(one, 50.0)
    second = document("second", PROMPT, of="d")
    ask(one, second, at=again_s)
    return one, second


@pytest.mark.parametrize("name", ["dram", "ssd", "ssd-gds", "ssd-tutti"])
def test_a_loaded_prefix_takes_the_time_of_the_closed_form(name: str) -> None:
    one, second = asked_twice(tiers(name))
    held = (PROMPT // 16 - 1) * 16
    expected = prefill_s(LAW, DEVICES[name], LAYOUT, PROMPT - held, held)
    assert second.first_token_s - second.scheduled_s == pytest.approx(expected)
    assert (second.cached_tokens, second.tier_tokens) == (held, (held,))
    assert one.stats().cache_hits == 0
    assert (tier(one).hit_tokens, tier(one).read_bytes) == (held, held * LAYOUT.bytes_per_token)
    assert tier(one).load_s == pytest.approx(load_s(DEVICES[name], LAYOUT, held))
    assert stats(one).bubble_s == pytest.approx(expected - LAW.prefill_s(PROMPT - held, held))


def test_loads_within_one_step_add_up() -> None:
    one = engine(600, tiers=tiers("ssd"))
    for name in "ab":
        ask(one, document(name, PROMPT, of=name), at=0.0)
    evict(one, 50.0)
    pair = [document(f"{name} again", PROMPT, of=name) for name in "ab"]
    (step,) = ask(one, *pair, at=100.0)
    held = (PROMPT // 16 - 1) * 16
    law_s = LAW.step_s(32, 2 * chunk_pairs(16, held), 0, 0)
    assert step.duration_s == pytest.approx(law_s + 2 * load_s(SSD, LAYOUT, held))


def test_blocks_that_can_be_computed_faster_are_not_loaded_unless_the_rule_is_always() -> None:
    one, second = asked_twice(tiers("ssd", always=False))
    assert (second.tier_tokens, second.cached_tokens) == ((), 0)
    assert stats(one).declined_tokens == (PROMPT // 16 - 1) * 16
    assert tier(one).read_bytes == 0
    _, third = asked_twice(tiers("dram", always=False))
    assert third.cached_tokens == (PROMPT // 16 - 1) * 16


def test_the_first_gap_ends_the_look_up() -> None:
    one = engine(300, tiers=tiers("dram"))
    short, long = document("short", 1600, of="d"), document("long", PROMPT, of="d")
    ask(one, short, at=0.0)
    evict(one, 20.0)
    ask(one, long, at=50.0)
    assert long.tier_tokens == (99 * 16,)


def test_the_faster_tier_is_read_first_and_the_remainder_comes_from_below() -> None:
    model = tiers("dram", "ssd", promote_hits=0)
    one, second = asked_twice(with_capacity(model, 0, 500))  # the filler displaces the end of the document
    dram, ssd = second.tier_tokens
    assert (dram, ssd) == (101 * 16, 154 * 16)
    assert dram + ssd == second.cached_tokens == (PROMPT // 16 - 1) * 16
    assert tier(one, 0).queried_blocks > tier(one, 0).hit_blocks
    assert tier(one, 0).evicted_tokens > 0


def with_capacity(model: TiersModel, number: int, blocks: float) -> TiersModel:
    changed = replace(model.tiers[number], capacity_bytes=blocks * BLOCK_BYTES)
    return replace(model, tiers=(*model.tiers[:number], changed, *model.tiers[number + 1 :]))


@pytest.mark.parametrize(
    ("write", "asked", "written"), [("through", 1, 256), ("second_use", 1, 0), ("second_use", 2, 255)]
)
def test_the_write_policy_decides_when_blocks_are_written(write: Any, asked: int, written: int) -> None:
    one = engine(300, tiers=tiers("dram", write=write))
    for number in range(asked):
        ask(one, document(str(number), PROMPT, of="d"), at=number * 10.0)
    assert tier(one).written_bytes == written * BLOCK_BYTES


def test_evicted_blocks_are_written_before_their_reuse_and_the_step_waits() -> None:
    one = engine(300, tiers=tiers("dram", write="evict"))
    ask(one, document("a", PROMPT, of="d"), at=0.0)
    assert tier(one).written_bytes == 0
    (step,) = ask(one, request("other", 1600, 1), at=10.0)
    reused = 100 - (300 - 256)
    assert tier(one).written_bytes == reused * BLOCK_BYTES
    law_s = LAW.prefill_s(1600)
    assert step.duration_s == pytest.approx(law_s + store_s(DRAM, LAYOUT, reused * 16))


def test_blocks_evicted_from_host_memory_move_down_to_the_drive() -> None:
    model = with_capacity(tiers("dram", "ssd", write="evict"), 0, 100)
    one = engine(300, tiers=model)
    ask(one, document("a", PROMPT, of="d"), at=0.0)
    evict(one, 10.0)
    assert tier(one, 1).written_bytes > 0
    assert tier(one, 0).held_tokens + tier(one, 1).held_tokens >= 255 * 16


@pytest.mark.parametrize(("promote_hits", "copied"), [(0, [False, False]), (1, [True, True]), (2, [False, True])])
def test_blocks_are_copied_up_after_enough_hits(promote_hits: int, copied: list[bool]) -> None:
    model = with_capacity(tiers("dram", "ssd", promote_hits=promote_hits), 0, 400)
    one = engine(300, tiers=model)
    ask(one, document("first", PROMPT, of="d"), at=0.0)
    for number, expected in enumerate(copied):
        for other in range(2):  # evict the document from HBM and host memory
            ask(one, request(f"{number} {other}", 4799, 1), at=50.0 + number * 100 + other * 10)
        again = document(f"again {number}", PROMPT, of="d")
        ask(one, again, at=100.0 + number * 100)
        assert again.tier_tokens == (0, 255 * 16)
        assert one._tiers is not None
        assert all(key in one._tiers._tiers[0].cache for key in again.chain[:255]) is expected


def test_a_prefetch_hides_the_wait_in_the_queue() -> None:
    model = with_capacity(tiers("dram", "ssd", prefetch=True), 0, 300)
    times = []
    for prefetch in (False, True):
        one = engine(300, tiers=replace(model, prefetch=prefetch))
        ask(one, document("first", PROMPT, of="d"), at=0.0)
        evict(one, 50.0)
        one.add_request(request("before", 4700, 1), 100.0)
        second = document("second", PROMPT, of="d")
        one.add_request(second, 100.0)
        run(one)
        times.append(second.first_token_s - second.scheduled_s)
        assert second.cached_tokens == 255 * 16
    assert times[1] < times[0] / 2


def test_a_prefetch_for_a_request_that_leaves_is_wasted() -> None:
    model = with_capacity(tiers("dram", "ssd", prefetch=True), 0, 300)
    one = engine(300, tiers=model)
    ask(one, document("first", PROMPT, of="d"), at=0.0)
    evict(one, 50.0)
    one.add_request(document("second", PROMPT, of="d"), 100.0)
    one.abort("second")
    assert stats(one).wasted_bytes == 255 * BLOCK_BYTES


def test_naive_writes_slow_down_a_concurrent_load() -> None:
    """Writes cost at most their share of the drives' speed, and nothing once finished."""
    beside, _ = naive_and_slack("ssd")
    alone_s = load_s(SSD, LAYOUT, 255 * 16)
    assert alone_s < beside.load_s <= alone_s / NAIVE_SHARE * (1 + 1e-9)
    _, second = asked_twice(tiers("ssd"), again_s=1000.0)
    assert second.first_token_s - second.scheduled_s == pytest.approx(
        prefill_s(LAW, SSD, LAYOUT, PROMPT - 255 * 16, 255 * 16)
    )


def naive_and_slack(name: str) -> tuple[TierStats, Engine]:
    one = engine(300, tiers=tiers(name))
    ask(one, document("first", PROMPT, of="d"), at=0.0)
    evict(one, 50.0)
    now = one.clock_s - API_S
    ask(one, document("second", PROMPT, of="d"), at=now)
    return tier(one), one


def test_slack_aware_writes_do_not_delay_loads_and_finish_in_idle_time() -> None:
    found, one = naive_and_slack("ssd-tutti")
    assert found.load_s == pytest.approx(load_s(SSD_TUTTI, LAYOUT, 255 * 16))
    waiting = stats(one).backlog_bytes
    assert 0 < waiting <= stats(one).backlog_most_bytes
    assert stats(one, one.clock_s + waiting / 2 / SSD_TUTTI.write_bytes_per_s).backlog_bytes == pytest.approx(
        waiting / 2
    )
    assert stats(one, one.clock_s + 10).backlog_bytes == 0
    assert one.usage_at(one.clock_s + 10) == 0


def test_naive_is_slower_than_slack_aware_with_the_same_drive() -> None:
    times = []
    for contention in ("naive", "slack"):
        one = engine(300, tiers=with_device(tiers("ssd"), 0, contention=contention))
        ask(one, document("first", PROMPT, of="d"), at=0.0)
        evict(one, 50.0)
        second = document("second", PROMPT, of="d")
        ask(one, second, at=one.clock_s - API_S)
        times.append(second.first_token_s - second.scheduled_s)
    assert times[0] > times[1]


def test_unwritten_blocks_stay_in_hbm_and_admission_waits_for_their_writing() -> None:
    slow = with_device(tiers("ssd-tutti"), 0, write_bytes_per_s=1e8)
    one = engine(300, tiers=slow)
    first, second = document("first", PROMPT, of="d"), document("second", PROMPT, of="e")
    ask(one, first, at=0.0)
    assert one.pool.free == 300 - 256
    one.add_request(second, 1.0)
    (step,) = run(one)
    limit = 0.2 * 300 * BLOCK_BYTES
    assert step.start_s >= first.finished_s + (256 * BLOCK_BYTES - limit) / 1e8 - 1e-6
    assert second.cached_tokens == 0


def test_a_reset_writes_the_backlog_and_keeps_the_lower_tiers() -> None:
    one = engine(300, tiers=tiers("ssd-tutti"))
    ask(one, document("first", PROMPT, of="d"), at=0.0)
    assert one.reset_cache()
    assert (one.pool.free, stats(one).backlog_bytes) == (300, 0)
    second = document("second", PROMPT, of="d")
    ask(one, second, at=10.0)
    assert second.tier_tokens == (255 * 16,)


def test_a_load_that_does_not_fit_beside_the_pool_fails_its_request() -> None:
    model = tiers("ssd-gds", staging_bytes=0.45 * LAYOUT.bytes(254 * 16))
    one, second = asked_twice(model)
    assert one.take_failed() == [second]
    assert one.take_failed() == []
    assert (second.is_over, second.generated, second.blocks) == (True, 0, [])
    assert stats(one).failed == 1
    assert (one.stats().running, one.stats().waiting, one.pool.free) == (0, 0, 300)
    assert one.abort(second.id) is None


def test_an_aborted_load_leaves_nothing_behind() -> None:
    one = engine(300, tiers=tiers("ssd"))
    ask(one, document("first", PROMPT, of="d"), at=0.0)
    evict(one, 50.0)
    second = document("second", PROMPT, of="d")
    second.pull_tokens = PROMPT  # the remainder comes from another instance and waits with the load
    one.add_request(second, 100.0)
    run(one)
    assert one.take_pulls() == [second]
    assert second.load is not None
    one.abort("second")
    assert (second.load, one.pool.free) == (None, 300)


def test_events_carry_the_medium_of_their_tier() -> None:
    one = engine(300, tiers=with_capacity(tiers("dram"), 0, 100))
    ask(one, document("first", PROMPT, of="d"), at=0.0)
    events = one.pool.take_events()
    media = [(type(event), event.medium) for event in events if isinstance(event, Stored | Removed)]
    assert media == [(Stored, "GPU"), (Stored, "CPU"), (Removed, "CPU")]


# The closed form against single steps

asks = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 60), st.sampled_from("xyz"), st.floats(0, 2)), min_size=1, max_size=12
)
models = st.sampled_from(
    [
        tiers("dram"),
        tiers("ssd", blocks=25),
        tiers("dram", "ssd", blocks=12, always=False),
        tiers("dram", write="evict", blocks=40),
        tiers("dram", "ssd", write="evict", blocks=9),
        tiers("dram", "ssd", write="second_use", promote_hits=2, blocks=20, prefetch=True),
        tiers("ssd-gds", "ssd-tutti", blocks=30),
        with_device(tiers("ssd-tutti"), 0, write_bytes_per_s=3e7),
        with_device(tiers("dram", "ssd-tutti", blocks=15, prefetch=True), 1, write_bytes_per_s=1e8),
        with_device(tiers("dram", "ssd-tutti", blocks=15, write="evict"), 1, write_bytes_per_s=1e8),
    ]
)
Outcome = list[tuple[float, ...]]


def arrivals(plan: list[tuple[int, int, str, float]]) -> list[tuple[float, EngineRequest]]:
    made = [
        (now, request(f"r{i}", prompt * 8, output, family=family, shared=prompt * 6))
        for i, (prompt, output, family, now) in enumerate(plan)
    ]
    return sorted(made, key=lambda pair: pair[0])


def outcome(one: Engine, requests: list[tuple[float, EngineRequest]]) -> Outcome:
    assert one.pool.free == one.pool.total
    found = stats(one)
    bytes_and_hits = [(t.hit_tokens, t.read_bytes, t.written_bytes, t.load_s, t.held_tokens) for t in found.tiers]
    times = [(ask.first_token_s, ask.finished_s, ask.cached_tokens, ask.preemptions) for _, ask in requests]
    return [*times, *bytes_and_hits, (found.bubble_s, found.backlog_most_bytes, found.wasted_bytes)]


def by_ticks(model: TiersModel, plan: list[tuple[int, int, str, float]], blocks: int, tick_s: float) -> Outcome:
    one, requests, now = engine(blocks, tiers=model), arrivals(plan), 0.0
    for at, asked in requests:
        while now + tick_s < at:
            now += tick_s
            one.advance(now)
        one.advance(at)  # a prefetch sees what has been written by then
        one.add_request(asked, at)
    while one.next_event_s() is not None:
        now += tick_s
        one.advance(now)
    one.usage_at(now + 1000)
    return outcome(one, requests)


def by_turns(model: TiersModel, plan: list[tuple[int, int, str, float]], blocks: int) -> Outcome:
    one, requests = engine(blocks, tiers=model), arrivals(plan)
    waiting = deque(requests)
    while waiting or one.next_turn_s() is not None:
        due_s = one.next_turn_s()
        if waiting and (due_s is None or waiting[0][0] <= due_s):
            now, asked = waiting.popleft()
            one.add_request(asked, now)
        else:
            assert due_s is not None
            one.turn(due_s)
    one.usage_at(one.clock_s + 1000)
    return outcome(one, requests)


WAYS: list[Callable[[TiersModel, list[tuple[int, int, str, float]], int], Outcome]] = [
    by_turns,
    lambda model, plan, blocks: by_ticks(model, plan, blocks, 10.0),
    lambda model, plan, blocks: by_ticks(model, plan, blocks, 0.05),
]


@settings(max_examples=50, deadline=None)
@given(models, asks, st.integers(20, 60), st.sampled_from(WAYS))
def test_runs_in_closed_form_equal_single_steps(
    model: TiersModel,
    plan: list[tuple[int, int, str, float]],
    blocks: int,
    way: Callable[[TiersModel, list[tuple[int, int, str, float]], int], Outcome],
) -> None:
    """Tokens, hits, bytes and preemptions are equal, and so are times after rounding; no two steps end within 4 ms."""
    for jumped, stepped in zip(way(model, plan, blocks), by_ticks(model, plan, blocks, 0.004), strict=True):
        assert jumped == pytest.approx(stepped, rel=1e-9, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(models, asks, st.integers(20, 60))
def test_hits_stay_within_the_prompts_and_bubbles_are_not_negative(
    model: TiersModel, plan: list[tuple[int, int, str, float]], blocks: int
) -> None:
    one, requests = engine(blocks, tiers=model), arrivals(plan)
    for now, asked in requests:
        one.advance(now)
        one.add_request(asked, now)
    one.advance(math.inf)
    found = stats(one)
    assert found.bubble_s >= -1e-12
    for _, asked in requests:
        assert asked.generated == asked.output_tokens
        assert sum(asked.tier_tokens) <= asked.cached_tokens < asked.prompt_tokens
    assert sum(t.hit_tokens for t in found.tiers) + one.stats().cache_hits <= one.stats().cache_queries
    for t in found.tiers:
        assert t.held_tokens <= t.capacity_tokens
        assert t.hit_blocks <= t.queried_blocks
        assert min(t.read_bytes, t.written_bytes, t.load_s, t.write_s) >= 0
