"""Reading recorded traffic: blocks from their hashes, arrivals from timestamps, and how a bad entry is refused."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.evidence.experiments.replay.prompts import PromptWriter
from controlplane.evidence.traces.formats import fields, registry
from controlplane.evidence.traces.types import BadTrace, MeasuredLatency


def blocks(*ids: int) -> str:
    return base64.b64encode(b"".join(number.to_bytes(8, "little") for number in ids)).decode()


def recorded_line(**changes) -> str:
    row = {"schema": 1, "at": 1_700_000_000.5, "pool": "demo", "model": "llama", "session": "00ff00ff00ff00ff"}
    row |= {"input_tokens": 1100, "output_tokens": 5, "block_tokens": 512, "blocks": blocks(7, 8), "outcome": "ok"}
    return json.dumps({k: v for k, v in (row | changes).items() if v is not ...})


def read(*lines: str):
    return registry.read("\n".join(lines).encode(), seed=1)


def test_an_entry_keeps_its_lengths_its_session_and_its_blocks():
    trace = read(recorded_line())
    assert (trace.format, trace.pacing) == ("recorded", "timestamps")
    (request,) = trace.requests
    assert (request.input_tokens, request.output_tokens, request.block_tokens) == (1100, 5, 512)
    assert (request.at_s, request.session, request.think_s) == (0.0, "00ff00ff00ff00ff", 0.0)
    assert request.blocks == (range(2),)


def test_entries_that_are_not_played_are_counted_and_unread_fields_named():
    failed = recorded_line(outcome="error", at=1.0)
    trace = read(recorded_line(delivery=3, arm="candidate"), failed, failed, recorded_line(output_tokens=..., at=2.0))
    assert (len(trace.requests), trace.left_out, trace.ignored) == (1, 2, ("arm", "delivery"))


def test_requests_arrive_at_their_recorded_times():
    trace = read(recorded_line(at=12.5, output_tokens=2), recorded_line(at=10.0, output_tokens=1))
    assert [(r.index, r.at_s, r.output_tokens) for r in trace.requests] == [(0, 0.0, 1), (1, 2.5, 2)]


def test_an_entry_reports_what_the_router_measured_and_by_which_version():
    told = {"policy": "default", "version": 3, "ttft_ms": 120.5, "tpot_ms": 8.25}
    (request,) = read(recorded_line(**told)).requests
    assert request.measured == MeasuredLatency(1_700_000_000.5, "demo", "llama", "default", 3, 120.5, 8.25)


def test_an_entry_of_an_earlier_router_has_no_version_and_no_times():
    (request,) = read(recorded_line()).requests
    assert request.measured == MeasuredLatency(1_700_000_000.5, "demo", "llama", "", 0, None, None)


def test_an_entry_has_the_band_and_the_tenant_of_its_queue_or_neither():
    later, earlier = read(recorded_line(band=-5, tenant="ff00ff00ff00ff00", at=2.0), recorded_line(at=3.0)).requests
    assert [(one.band, one.tenant) for one in (later, earlier)] == [(-5, "ff00ff00ff00ff00"), (0, "")]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=4), st.lists(st.integers(0, 2**64 - 1), max_size=4))
def test_requests_share_the_blocks_and_the_prompts_that_their_hashes_share(one, other):
    """A prefix of 1,024 tokens is two blocks of 512."""
    shared = [2**63 + 1, 2**63 + 2]
    lines = [
        recorded_line(at=at, blocks=blocks(*shared, *own), input_tokens=512 * (2 + len(own)) + 100)
        for at, own in ((1.0, one), (2.0, other))
    ]
    first, second = read(*lines).requests
    ids = [list(request.block_ids()) for request in (first, second)]
    alike = [a == b for a, b in zip([*shared, *one], [*shared, *other], strict=False)]
    assert [a == b for a, b in zip(*ids, strict=False)] == alike
    prompts = [PromptWriter().write(request) for request in (first, second)]
    assert prompts[0][: 1024 * 4] == prompts[1][: 1024 * 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "refused"},
        {"outcome": "cancelled"},
        {"output_tokens": None},
        {"output_tokens": 0},
        {"input_tokens": 0},
    ],
)
def test_requests_without_an_answer_of_known_length_are_left_out(changes):
    assert len(read(recorded_line(at=1.0), recorded_line(at=2.0, **changes)).requests) == 1


def test_an_entry_that_was_read_twice_counts_once():
    assert len(read(recorded_line(at=1.0), recorded_line(at=2.0), recorded_line(at=1.0)).requests) == 2


def test_all_requests_have_blocks_of_one_size():
    made = read(*(recorded_line(at=at, block_tokens=size) for at, size in ((1.0, 480), (2.0, 481), (3.0, 530))))
    assert {request.block_tokens for request in made.requests} == {481}


@pytest.mark.parametrize(
    ("changes", "path", "allowed"),
    [
        ({"at": -1}, "line 2, at", "Unix seconds"),
        ({"at": ...}, "line 2, at", "missing"),
        ({"session": "a\nb"}, "line 2, session", "printable"),
        ({"session": None}, "line 2, session", "printable"),
        ({"input_tokens": "one"}, "line 2, input_tokens", "whole number from 0"),
        ({"block_tokens": 0}, "line 2, block_tokens", "whole number from 1"),
        ({"blocks": "%%"}, "line 2, blocks", "base64 of 8 bytes"),
        ({"blocks": "AAAA"}, "line 2, blocks", "base64 of 8 bytes"),
        ({"blocks": None}, "line 2, blocks", "base64 of 8 bytes"),
        ({"schema": 2}, "line 2, schema", "from 1 to 1"),
        ({"outcome": ...}, "line 2, outcome", "missing"),
        ({"policy": 1}, "line 2, policy", "up to 500 characters"),
        ({"version": -1}, "line 2, version", "whole number from 0"),
        ({"ttft_ms": "fast"}, "line 2, ttft_ms", "number from 0"),
        ({"tpot_ms": -1}, "line 2, tpot_ms", "number from 0"),
    ],
)
def test_a_bad_entry_is_refused_with_line_field_and_what_is_allowed(changes, path, allowed):
    with pytest.raises(BadTrace) as refused:
        read(recorded_line(), recorded_line(**changes))
    assert refused.value.path == path
    assert allowed in refused.value.allowed


def test_a_recording_without_requests_is_refused():
    with pytest.raises(BadTrace, match="none of 1 entries"):
        read(recorded_line(outcome="error"))


def test_think_times_are_known_only_in_formats_with_sessions():
    known = [name for name in (*registry.FORMATS, "generated") if registry.has_think_times(name)]
    assert known == ["aiperf", "coding_agent", "generated"]


def test_an_entry_with_very_many_runs_is_refused(monkeypatch):
    monkeypatch.setattr(fields, "MAX_RUNS_OF_REQUEST", 1)
    with pytest.raises(BadTrace, match="at most 1 runs of blocks") as refused:
        read(recorded_line(blocks=blocks(1, 2)), recorded_line(blocks=blocks(1, 3, 2)))
    assert refused.value.path == "line 2, blocks"
