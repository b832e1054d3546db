"""Playing a trace against an engine over real sockets."""

import asyncio
import itertools
from collections import defaultdict
from dataclasses import replace

import pytest

from controlplane.evidence.experiments.replay.drive import OfferedLoad, ReplayProgress, per_token, play
from controlplane.evidence.experiments.replay.prompts import PromptWriter
from controlplane.evidence.experiments.results.records import Record
from controlplane.evidence.experiments.tests.fake_engine import fake_engine
from controlplane.evidence.traces.types import TraceRequest


def request(index: int, at_s: float = 0.0, session: str = "", tokens: int = 40, think_s: float = 0.0) -> TraceRequest:
    return TraceRequest(index, at_s, session, tokens, 4, (range(3),), 16, think_s)


def load(*requests: TraceRequest, pacing: str = "timestamps", time_scale: float = 10.0, **changes) -> OfferedLoad:
    values = {"duration_s": 1000.0, "model": "fake", "writer": PromptWriter(), "headers": {"x-weir-pool": "exp-1-1"}}
    return OfferedLoad(requests=requests, pacing=pacing, time_scale=time_scale, **(values | changes))


async def test_every_request_becomes_a_record_with_the_reports_of_router_and_engine():
    found: list[Record] = []
    async with fake_engine(token_s=0.002) as engine:
        asked = load(request(0), request(1, 0.5), classes={0: "heavy", 1: "warm"}, request_ids="exp-1-1")
        await play(asked, [engine.url], found.append)
    first = next(record for record in found if record.index == 0)
    assert (first.outcome, first.status, first.instance) == ("ok", 200, "fake-0")
    assert (first.routed_class, first.trace_class, first.policy_version) == ("warm", "heavy", "3")
    assert (first.prompt_tokens, first.cached_tokens, first.output_tokens) == (40, 20, 4)
    assert (first.cached_device, first.cached_host, first.cached_disk, first.cached_pulled) == (8, 4, 2, 6)
    assert 0 < first.ttft_ms <= first.e2e_ms
    assert first.tpot_ms == pytest.approx((first.e2e_ms - first.ttft_ms) / 3, abs=0.01)
    assert {headers["x-weir-pool"] for headers in engine.headers} == {"exp-1-1"}
    assert {headers["x-request-id"] for headers in engine.headers} == {"exp-1-1-0", "exp-1-1-1"}


@pytest.mark.parametrize(
    ("first", "whole", "tokens", "expected"),
    [(0.5, 1.5, 5, 0.25), (0.5, 0.5, 5, None), (0.5, 0.5, 1, None), (0.5, 1.5, None, None), (None, None, 5, None)],
)
def test_the_time_per_token_is_known_only_if_tokens_arrived_one_after_the_other(first, whole, tokens, expected):
    assert per_token(first, whole, tokens) == expected


async def test_the_body_requests_exactly_the_output_of_the_trace_and_its_usage():
    async with fake_engine() as engine:
        await play(load(request(0)), [engine.url], lambda record: None)
    body = engine.bodies[0]
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (4, True, True)
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["prompt"]) == 160


async def test_times_are_in_the_engines_time_scale():
    found: list[Record] = []
    async with fake_engine(token_s=0.01) as engine:
        await play(load(request(0), time_scale=100.0), [engine.url], found.append)
    assert found[0].e2e_ms >= 100 * 3 * 10


async def test_requests_keep_their_bands():
    async with fake_engine() as engine:
        asked = load(replace(request(0), band=-5), replace(request(1), band=7), request(2))
        await play(asked, [engine.url], lambda record: None)
    bands = {headers["x-request-id"]: headers.get("x-weir-priority") for headers in engine.headers}
    assert bands == {"replay-0": "-5", "replay-1": "7", "replay-2": None}


async def test_an_open_loop_sends_requests_without_waiting_for_answers():
    found: list[Record] = []
    async with fake_engine(token_s=0.05) as engine:
        await play(load(*(request(i, 0.1 * i) for i in range(5))), [engine.url], found.append)
    assert engine.connections == 5
    assert sorted(record.index for record in found) == list(range(5))


async def test_in_a_closed_loop_a_turn_waits_for_the_answer_before_it_and_the_think_time():
    found: list[Record] = []
    turns = [request(i, 0.0, "a", think_s=0.2 if i else 0.0) for i in range(3)]
    async with fake_engine(token_s=0.01) as engine:
        await play(load(*turns, pacing="closed_loop"), [engine.url], found.append)
    assert [record.index for record in found] == [0, 1, 2]
    for before, after in itertools.pairwise(found):
        assert after.sent_s >= before.sent_s + before.e2e_ms / 1000 + 0.2 - 1e-3
    assert {headers["x-session-id"] for headers in engine.headers} == {"a"}


async def test_in_a_closed_loop_no_turn_begins_after_the_window():
    found: list[Record] = []
    turns = [request(i, 0.0, "a", think_s=1.0) for i in range(10)]
    async with fake_engine() as engine:
        await play(load(*turns, pacing="closed_loop", duration_s=2.5), [engine.url], found.append)
    assert 1 <= len(found) < 10


async def test_refusals_errors_and_broken_streams_are_recorded_and_do_not_end_the_run():
    answers = {1: "refuse", 2: "error", 3: "cut", 4: "ok"}
    found: list[Record] = []
    async with fake_engine(behaviour=lambda number, body: answers[number]) as engine:
        await play(load(*(request(i, 0.5 * i) for i in range(4))), [engine.url], found.append)
    outcomes = {record.index: (record.outcome, record.status) for record in found}
    assert outcomes == {0: ("refused", 429), 1: ("error", 500), 2: ("error", 0), 3: ("ok", 200)}
    assert "on purpose" in next(record.error for record in found if record.index == 0)


async def test_requests_without_a_server_become_errors():
    found: list[Record] = []
    await play(load(request(0)), ["http://127.0.0.1:9"], found.append)
    assert (found[0].outcome, found[0].ttft_ms) == ("error", None)
    assert "no connection" in found[0].error


async def test_cancelling_records_requests_in_flight_as_cancelled():
    found: list[Record] = []
    progress = ReplayProgress()
    async with fake_engine(behaviour=lambda number, body: "hang") as engine:
        task = asyncio.create_task(play(load(request(0), request(1)), [engine.url], found.append, progress))
        while len(engine.bodies) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [record.outcome for record in found] == ["cancelled", "cancelled"]
    assert (progress.sent, progress.done) == (2, 0)


async def test_a_full_disk_ends_the_replay_with_its_own_error():
    def full(record: Record) -> None:
        raise OSError("No space left on device")

    async with fake_engine() as engine:
        with pytest.raises(OSError, match="No space left"):
            await play(load(request(0), request(1, 60.0)), [engine.url], full)


async def test_with_several_routers_a_session_stays_with_one():
    async with fake_engine() as one, fake_engine() as two:
        turns = [request(10 * s + i, 0.0, f"session-{s}") for s in range(6) for i in range(3)]
        await play(load(*turns, pacing="closed_loop"), [one.url, two.url], lambda record: None)
        where = defaultdict(set)
        for engine in (one, two):
            for headers in engine.headers:
                where[headers["x-session-id"]].add(engine.url)
    assert one.bodies
    assert two.bodies
    assert {len(urls) for urls in where.values()} == {1}
