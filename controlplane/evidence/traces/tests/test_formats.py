"""Reading trace files: the accepted formats, and the refusal of each bad line."""

import gzip
import json

import pytest

from controlplane.evidence.traces.formats import fields, registry
from controlplane.evidence.traces.tests.conftest import mooncake_line
from controlplane.evidence.traces.types import BadTrace, TraceRequest

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def agent_line(**changes) -> str:
    row = {"session": "a", "i": 0, "t": 0.0, "input_length": 200, "output_length": 5, "runs": [[1, 3]]}
    row |= {"think_time": 1.5, "api_time": 2.0}
    return json.dumps({k: v for k, v in (row | changes).items() if v is not ...})


def read(*lines: str, seed: int = 1):
    return registry.read("\n".join(lines).encode(), seed)


def test_mooncake_blocks_keep_their_ids_as_runs():
    trace = read(mooncake_line(input_length=1100, hash_ids=[7, 8, 20]))
    assert trace.format == "mooncake"
    assert trace.pacing == "timestamps"
    assert trace.requests[0].blocks == (range(7, 9), range(20, 21))
    assert list(trace.requests[0].block_ids()) == [7, 8, 20]


@pytest.mark.parametrize(("given", "kept"), [("chat-7", "chat-7"), (7, "7"), (None, ""), ("", ""), (..., "")])
def test_a_session_of_mooncake_is_kept_whether_text_or_number(given, kept):
    row = json.loads(mooncake_line(session_id=None)) | {"session_id": given}
    line = json.dumps({key: value for key, value in row.items() if value is not ...})
    trace = read(line)
    assert (trace.requests[0].session, trace.ignored) == (kept, ())


@pytest.mark.parametrize("wrong", ["x" * 101, "é", "a\nb", -1, 1.5, True, ["a"]])
def test_an_impossible_session_of_mooncake_is_refused_by_name(wrong):
    with pytest.raises(BadTrace) as error:
        read(mooncake_line(session_id=wrong))
    assert error.value.path == "line 1, session_id"


def test_unused_columns_are_listed_in_every_format():
    assert read(mooncake_line(wait_for=[], tools=[], priority=None)).ignored == ("tools", "wait_for")
    assert read(agent_line()).ignored == ("api_time", "i")
    assert read(HEADER + ",SessionId,Model", "2023-11-16 18:17:03,10,5,s,m").ignored == ("Model", "SessionId")
    assert read(HEADER, "2023-11-16 18:17:03,10,5").ignored == ()


def test_a_long_list_of_ignored_columns_is_cut_and_counted():
    ignored = read(mooncake_line(**{f"column {n:02} " + "x" * 50: n for n in range(25)}, **{"\x07": 1})).ignored
    assert len(ignored) == 21
    assert ignored[-1] == "6 more"
    assert max(map(len, ignored)) == 40
    assert "?" in ignored


def test_arrivals_of_a_bucket_are_spread_within_it_in_their_order_by_the_seed():
    lines = [mooncake_line(timestamp=t, output_length=n) for t in (0, 3000, 6000) for n in (1, 2, 3)]
    first, again, other = read(*lines), read(*lines), read(*lines, seed=2)
    assert first == again
    assert [r.at_s for r in first.requests] != [r.at_s for r in other.requests]
    shift = first.requests[0].at_s
    assert shift == 0
    assert [r.output_tokens for r in first.requests] == [1, 2, 3] * 3
    for bucket in range(3):
        times = [r.at_s for r in first.requests[3 * bucket : 3 * bucket + 3]]
        assert times == sorted(times)
        assert max(times) - min(times) < 3


def test_arrivals_that_are_exact_stay_exact():
    trace = read(*(mooncake_line(timestamp=t) for t in (500, 1700, 2900)))
    assert [r.at_s for r in trace.requests] == pytest.approx([0, 1.2, 2.4])


def test_sessions_of_coding_agents_keep_their_turns_think_times_and_blocks_apart():
    trace = read(
        agent_line(),
        agent_line(i=1, t=9.0, input_length=260, runs=[[1, 4]], think_time=4.0),
        agent_line(session="b"),
    )
    assert trace.pacing == "closed_loop"
    a0, a1 = (r for r in trace.requests if r.session == "a")
    (b0,) = (r for r in trace.requests if r.session == "b")
    assert a1.at_s - a0.at_s == pytest.approx(9)
    assert a1.think_s == 4.0
    assert a0.blocks[0].start == a1.blocks[0].start
    assert not set(a0.block_ids()) & set(b0.block_ids())


def test_a_missing_think_time_is_read_as_zero():
    assert read(agent_line(think_time=None)).requests[0].think_s == 0


def test_azure_rows_have_lengths_and_arrivals_but_no_prefix():
    trace = read(HEADER, "2023-11-16 23:59:59.9799600,4808,10", "2023-11-17 00:00:00.4799600,3180,0")
    assert trace.format == "azure"
    assert [r.at_s for r in trace.requests] == pytest.approx([0, 0.5])
    assert [r.input_tokens for r in trace.requests] == [4808, 3180]
    assert trace.requests[1].output_tokens == 1
    assert trace.requests[0].blocks == ()


ROWS = f"{HEADER}\r\n2023-11-16 18:17:03,1,1\r\n\r\n2023-11-16 18:17:05.5 UTC,2.0,1\r\n"
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "data",
    [
        BOM + ROWS.encode(),
        ROWS.encode("utf-16"),
        gzip.compress(BOM + ROWS.encode()),
        gzip.compress(ROWS[:50].encode()) + gzip.compress(ROWS[50:].encode()),
        ROWS.replace(",", ";").encode(),
        ROWS.replace(HEADER, HEADER.replace("T", '"T', 1).replace("P,", 'P",')).encode(),
        ROWS.replace("2023-11-16 18:17:03", "1700158623").encode(),
    ],
    ids=["BOM", "UTF-16", "gzip", "two gzip members", "semicolons", "quotes", "seconds since 1970"],
)
def test_a_table_is_read_however_it_was_packed_and_its_times_and_numbers_written(data):
    requests = registry.read(data, 1).requests
    assert [(one.at_s, one.input_tokens) for one in requests] == [(0, 1), (2.5, 2)]


def test_a_damaged_or_too_large_gzip_file_is_refused(monkeypatch):
    data = gzip.compress(ROWS.encode())
    for broken in (data[:-4], data[:-12] + bytes(12)):
        with pytest.raises(BadTrace, match="a whole gzip file"):
            registry.read(broken, 1)
    monkeypatch.setattr(registry, "MAX_BYTES", len(data))
    with pytest.raises(BadTrace, match=f"at most {len(data)} bytes"):
        registry.read(data, 1)


def test_the_format_is_recognised_behind_a_long_first_list_of_blocks():
    row = {"hash_ids": [*range(20_000)], "input_length": 320_000, "output_length": 1, "timestamp": 0}
    (request,) = read(json.dumps(row)).requests
    assert (request.block_tokens, request.blocks) == (16, (range(20_000),))


def test_an_empty_list_of_blocks_is_no_prefix_and_numbers_may_be_texts():
    row = mooncake_line(hash_ids=[], input_length="1000", timestamp="5.0", output_length=2.0)
    (request,) = read(row).requests
    assert (request.blocks, request.input_tokens, request.output_tokens) == ((), 1000, 2)


GOOD = mooncake_line()
BAD = [
    ([GOOD, "{"], 2, "", "one JSON object per line"),
    ([GOOD, "[1]"], 2, "", "one JSON object per line"),
    ([GOOD, mooncake_line(input_length=None)], 2, "input_length", "missing"),
    ([GOOD, mooncake_line(input_length=0)], 2, "input_length", "whole number from 1 to"),
    ([GOOD, mooncake_line(input_length="12k")], 2, "input_length", "whole number from 1 to"),
    ([GOOD, mooncake_line(input_length=12.5)], 2, "input_length", "whole number from 1 to"),
    ([GOOD, mooncake_line(input_length=True)], 2, "input_length", "whole number from 1 to"),
    ([mooncake_line(output_length=-1)], 1, "output_length", "whole number from 0 to"),
    ([mooncake_line(timestamp=-5)], 1, "timestamp", "number from 0 to"),
    ([mooncake_line(timestamp="nan")], 1, "timestamp", "number from 0 to"),
    ([mooncake_line(hash_ids=[1, -2])], 1, "hash_ids", "whole numbers from 0"),
    ([mooncake_line(hash_ids="12")], 1, "hash_ids", "a list of whole numbers"),
    ([mooncake_line(hash_ids=[1, 2, 3, 4, 5])], 1, "hash_ids", "1 or 2 of 512 tokens"),
    ([GOOD, "", GOOD.replace("1000", "NaN")], 3, "input_length", "whole number"),
    ([agent_line(), agent_line(session="")], 2, "session", "printable ASCII"),
    ([agent_line(session="a\r\nx: y")], 1, "session", "printable ASCII"),
    ([agent_line(runs=[[1]])], 1, "runs", "[first block, count]"),
    ([agent_line(runs=[[1, 9]])], 1, "runs", "3 or 4 blocks of 64 tokens"),
    ([agent_line(runs=...)], 1, "session", ""),
    ([agent_line(t=None)], 1, "t", "number from 0"),
    ([agent_line(think_time=-1)], 1, "think_time", "number from 0"),
    ([HEADER, "yesterday,1,1"], 2, "TIMESTAMP", "a date and time"),
    ([HEADER, "2023-11-16 18:17:03,many,1"], 2, "ContextTokens", "whole number from 1"),
    ([HEADER, "2023-11-16 18:17:03,1,1", "2023-11-16 18:17:03,0,1"], 3, "ContextTokens", "whole number from 1"),
    ([HEADER, "2023-11-16 18:17:03,1"], 2, "", "the columns"),
    (["hello"], 1, "", "Mooncake JSONL"),
    ([""], 1, "", "Mooncake JSONL"),
]


@pytest.mark.parametrize(("lines", "line", "field", "allowed"), BAD)
def test_a_bad_line_is_refused_with_its_number_field_and_what_is_allowed(lines, line, field, allowed):
    with pytest.raises(BadTrace) as refused:
        read(*lines)
    if field == "session" and not allowed:  # without block numbers the file has no known format
        assert refused.value.line == 1
        return
    assert (refused.value.line, refused.value.field) == (line, field)
    assert allowed in refused.value.allowed


def test_a_file_without_requests_is_refused():
    with pytest.raises(BadTrace, match="at least one request"):
        read(HEADER)


def test_a_file_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "MAX_BYTES", 50)
    with pytest.raises(BadTrace, match="at most 50 bytes"):
        read(GOOD)


def test_too_many_requests_are_refused_at_the_first_line_beyond_the_limit(monkeypatch):
    from controlplane.evidence.traces.formats import fields

    monkeypatch.setattr(fields, "MAX_REQUESTS", 2)
    with pytest.raises(BadTrace, match=r"line 3.*at most 2 requests"):
        read(GOOD, GOOD, GOOD)


def test_bytes_that_are_not_text_are_refused_with_their_line():
    with pytest.raises(BadTrace, match=r"line 2.*UTF-8"):
        registry.read(GOOD.encode() + b"\n\xff\xfe", 1)
    with pytest.raises(BadTrace, match=r"line 1.*UTF-16"):
        registry.read(GOOD.encode("utf-16") + b"\n", 1)


def turn(index: int, session: str, tokens: int, at_s: float) -> TraceRequest:
    return TraceRequest(index, at_s, session, tokens, 10, (), 64, 0.0)


def test_a_session_ends_at_the_models_context_window():
    requests = [turn(0, "a", 50, 0), turn(1, "a", 95, 1), turn(2, "a", 20, 2), turn(3, "b", 20, 3)]
    assert [r.index for r in registry.window(requests, 100, 100)] == [0, 3]


def test_a_window_leaves_out_requests_that_do_not_fit_or_arrive_later():
    requests = [turn(0, "", 95, 0), turn(1, "", 20, 1), turn(2, "", 20, 60)]
    assert [r.index for r in registry.window(requests, 60, 100)] == [1]


def test_a_higher_load_brings_arrivals_closer_together():
    assert [r.at_s for r in registry.faster([turn(0, "", 1, 0), turn(1, "", 1, 10)], 2)] == [0, 5]


SPARSE = list(range(0, 10_000, 2))  # each block is its own run


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (mooncake_line(input_length=len(SPARSE) * 512, hash_ids=SPARSE), "line 1, hash_ids"),
        (agent_line(input_length=64, runs=[[0, 1], *([n, 0] for n in SPARSE)]), "line 1, runs"),
    ],
)
def test_a_request_with_very_many_runs_is_refused(line, path):
    with pytest.raises(BadTrace, match="at most 4,096 runs of blocks") as refused:
        read(line)
    assert refused.value.path == path


def test_a_trace_with_very_many_runs_is_refused(monkeypatch):
    monkeypatch.setattr(fields, "MAX_RUNS", 5)
    lines = [mooncake_line(input_length=1024, hash_ids=[1, 9])] * 3
    assert len(read(*lines[:2]).requests) == 2
    with pytest.raises(BadTrace, match="at most 5 runs of blocks in a trace") as refused:
        read(*lines)
    assert refused.value.path == "line 3, hash_ids"
