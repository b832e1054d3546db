"""Neuron's batches: prompts whole and one at a time, transfers that take a slot, no prefix cache."""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engine.engine import Engine
from fleet.engine.neuron_batches import next_poll_s
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits
from fleet.tests.engine.builders import LAW, request


def neuron(role: str, batch: int, blocks: int = 4000) -> Engine:
    return Engine(LAW, blocks, Limits(16, batch, 8192, role, async_scheduling=False), api_s=0.0)


@dataclass
class World:
    """One prefill and one decode worker; `seen` is called with every event."""

    prefill: Engine
    decode: Engine
    transfer_s: float
    events: list[Any] = field(default_factory=list)
    arrived: dict[str, float] = field(default_factory=dict)  # end of the transfer
    number: int = 0
    now: float = 0.0

    def post(self, at: float, call: Any, *given: Any) -> None:
        self.number += 1
        heappush(self.events, (at, self.number, call, given))

    def send(self, name: str, prompt: int, output: int) -> EngineRequest:
        first = request(f"{name}-prefill", prompt, 1)
        first.held = True
        work = request(name, prompt, output)
        work.awaits_prefill, work.pull_tokens, first.owner = True, prompt, work
        self.prefill.add_request(first, self.now)
        self.decode.add_request(work, self.now)
        self.turn(self.prefill)
        return work

    def turn(self, engine: Engine) -> None:
        due = engine.next_turn_s()
        if due is not None:
            self.post(max(due, self.now), self.run, engine, due)

    def run(self, engine: Engine, due: float) -> None:
        if engine.next_turn_s() == due:
            result = engine.turn(self.now)
            for one in result.finished if result is not None and engine is self.prefill else ():
                self.post(self.now, self.found, one.owner)
            for work in self.decode.take_pulls():
                self.post(self.now + self.transfer_s, self.moved, work)
            self.turn(engine)

    def found(self, work: EngineRequest) -> None:
        self.decode.prefilled(work, self.now)
        self.turn(self.decode)

    def moved(self, work: EngineRequest) -> None:
        self.prefill.release_held(f"{work.id}-prefill", self.now)
        self.arrived[work.id] = self.now
        self.decode.pulled(work, work.prompt_tokens, self.now)
        self.turn(self.prefill)
        self.turn(self.decode)

    def play(self, seen: Any = lambda: None) -> None:
        while self.events:
            self.now, _, call, given = heappop(self.events)
            call(*given)
            seen()


def world(batch: int = 2, prefills: int = 2, transfer_s: float = 0.01) -> World:
    return World(neuron("neuron_prefill", prefills), neuron("neuron_decode", batch), transfer_s)


plans = st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 3000), st.integers(1, 30)), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None)
@given(plans, st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.0, 0.003, 0.4]))
def test_the_bounds_hold_at_every_event_and_nothing_decodes_before_its_kv(
    plan: Any, batch: int, prefills: int, transfer_s: float
) -> None:
    made = world(batch, prefills, transfer_s)
    works: list[EngineRequest] = []
    for number, (at, prompt, output) in enumerate(sorted(plan)):
        made.post(at, lambda n, p, o: works.append(made.send(f"r{n}", p, o)), number, prompt, output)

    def bounds() -> None:
        sender, receiver = made.prefill.stats(), made.decode.stats()
        assert sender.running <= 1
        assert sender.running + sender.transferring <= prefills
        assert receiver.running + receiver.transferring <= batch

    made.play(bounds)
    assert [work.generated for work in works] == [work.output_tokens for work in works]
    for work in works:
        assert work.first_token_s >= made.arrived[work.id]
        assert work.interruptions == 0
    assert (made.prefill.pool.usage, made.decode.pool.usage) == (0, 0)


def test_a_decoder_without_a_slot_stops_the_prefill() -> None:
    made = world(batch=1, prefills=2)
    made.now = 0.0
    works = [made.send(f"r{n}", 320, 400) for n in range(5)]
    waited: list[tuple[int, int]] = []

    def look() -> None:
        stats = made.prefill.stats()
        waited.append((stats.transferring, stats.running))

    made.play(look)
    assert max(waited) == (2, 0)
    stats = made.prefill.stats()
    assert stats.blocked_s > 2 * (works[1].finished_s - works[1].first_token_s)
    starts = sorted(work.first_token_s for work in works)
    assert starts[1] > works[0].finished_s  # one after the other: the second needs the slot of the first


def test_the_second_token_arrives_one_step_after_the_transfer() -> None:
    made = world(transfer_s=0.25)
    work = made.send("a", 320, 3)
    made.play()
    step_s = LAW.step_s(1, 0.0, 321, 1)
    assert work.second_token_s == pytest.approx(made.arrived["a"] + step_s)
    assert (work.pulled_tokens, work.cached_tokens) == (320, 320)


def test_a_prompt_is_computed_whole_and_hits_no_cache() -> None:
    made = neuron("neuron", 4)
    for name in ("a", "b"):
        made.add_request(request(name, 16_000, 2, family="f", shared=16_000), 0.0)
    first, second = made.step(), made.step()
    assert first is not None
    assert second is not None
    assert (first.scheduled, second.scheduled) == (16_000, 16_000)
    stats = made.stats()
    assert (stats.cache_queries, stats.cache_hits) == (0, 0)


def test_a_prompt_that_could_not_be_pulled_is_computed_by_the_decoder() -> None:
    made = neuron("neuron_decode", 1)
    work = request("a", 320, 3)
    work.awaits_prefill, work.pull_tokens = True, 320
    made.add_request(work, 0.0)
    assert made.stats().waiting == 1
    made.prefilled(work, 0.1)
    made.prefilled(work, 0.2)  # reported twice
    made.step()
    made.pulled(work, 0, 0.5)
    while made.step() is not None:
        pass
    assert (work.generated, work.cached_tokens) == (3, 0)


def test_a_request_aborted_while_its_prompt_is_computed_is_forgotten() -> None:
    made = neuron("neuron_decode", 1)
    work = request("a", 320, 3)
    work.awaits_prefill = True
    made.add_request(work, 0.0)
    assert made.abort("a") is work
    made.prefilled(work, 0.1)
    assert (made.next_event_s(), made.stats().waiting) == (None, 0)


def test_a_request_that_leaves_after_its_kv_arrived_frees_its_blocks() -> None:
    made = neuron("neuron_decode", 1)
    work = request("a", 320, 3)
    work.pull_tokens = 320
    made.add_request(work, 0.0)
    made.step()
    made.pulled(work, 320, 0.5)
    made.abort("a")
    assert (made.pool.usage, made.stats().transferring) == (0, 0)


def closed_loop(batching: str, batch: int, prompt: int, output: int, answers: int = 80) -> list[EngineRequest]:
    """Simulate a closed loop: each slot sends its next request at once; the first answers differ in length, so that
    slots are out of step."""
    made = neuron(batching, batch, blocks=batch * (prompt + output) // 8)
    done: list[EngineRequest] = []
    for slot in range(batch):
        made.add_request(request(f"s{slot}", prompt, output * (slot + 1) // batch), 0.0)
    sent = batch
    while len(done) < answers:
        result = made.step()
        assert result is not None
        for one in result.finished:
            done.append(one)
            made.add_request(request(f"r{sent}", prompt, output), result.end_s)
            sent += 1
    return done[2 * batch :]


@pytest.mark.parametrize("batch", [2, 8])
def test_every_other_slot_interrupts_an_answer_once(batch: int) -> None:
    """The guide counts 7 interruptions at a batch of 8."""
    seen = [one.interruptions for one in closed_loop("neuron", batch, 1000, 80)]
    assert sum(seen) / len(seen) == pytest.approx(batch - 1, abs=0.2)


@pytest.mark.parametrize(("done_s", "found_s"), [(0.0, 1.0), (1.0, 1.0), (1.2, 1.25), (1.25, 1.25), (1.2501, 1.5)])
def test_a_poll_finds_prompts_that_were_computed_before_it(done_s: float, found_s: float) -> None:
    assert next_poll_s(1.0, done_s, 0.25) == found_s
    assert next_poll_s(1.0, done_s, 0.0) == max(1.0, done_s)
