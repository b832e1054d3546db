"""Trace files of other programs: units, block sizes, sessions, logs of gateways and engines."""

import json
from contextlib import suppress

import pytest

from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.summary import ideal_hits
from controlplane.evidence.traces.tests.conftest import mooncake_line
from controlplane.evidence.traces.types import BadTrace


def read(*lines: str, seed: int = 1):
    return registry.read("\n".join(lines).encode(), seed)


def times(trace):
    return [round(request.at_s, 6) for request in trace.requests]


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256, 512])
def test_the_size_of_blocks_follows_from_the_rows(size):
    lines = [mooncake_line(timestamp=n, input_length=n * size + 1, hash_ids=list(range(n + 1))) for n in (3, 40, 90)]
    trace = read(*lines)
    assert {request.block_tokens for request in trace.requests} == {size}


def test_rows_without_a_common_block_size_are_refused_at_the_first_that_does_not_fit():
    wide, narrow = (mooncake_line(input_length=51_200, hash_ids=list(range(count))) for count in (100, 3_200))
    with pytest.raises(BadTrace, match=r"line 2, hash_ids.*100 or 100 of 512 tokens"):
        read(wide, narrow)


def test_ids_that_are_hashes_or_texts_are_numbered_so_that_prefixes_agree():
    ids = [2**63 + 5, 2**62 + 1]
    first, second, texts = read(
        mooncake_line(hash_ids=ids),
        mooncake_line(timestamp=9, hash_ids=[ids[0], 2**61]),
        mooncake_line(timestamp=20, hash_ids=["a1b2", "c3d4"]),
    ).requests
    assert next(first.block_ids()) == next(second.block_ids())
    assert len({*first.block_ids(), *second.block_ids(), *texts.block_ids()}) == 5


@pytest.mark.parametrize(("start", "step"), [(1.7e9, 2), (1.7e12, 2e3), (1.7e15, 2e6), (1.7e18, 2e9)])
def test_the_unit_of_times_since_1970_is_inferred_from_their_size(start, step):
    lines = [mooncake_line(timestamp=int(start + n * step)) for n in range(60)]
    assert times(read(*lines))[:3] == [0, 2, 4]


def test_a_first_line_states_unit_and_block_size():
    lines = [mooncake_line(timestamp=n / 2, input_length=64, hash_ids=[1]) for n in range(60)]
    trace = read('{"time_unit": "s", "block_tokens": 64}', *lines)
    assert times(trace)[:3] == [0, 0.5, 1]
    assert trace.requests[0].block_tokens == 64
    with pytest.raises(BadTrace, match=r"line 1, time_unit: 'h' \(one of s, ms, us, ns\)"):
        read('{"time_unit": "h"}', *lines)


def test_rows_with_the_blocks_of_a_prefix_only_are_read_if_the_file_states_the_block_size():
    """AIPerf 0.13.0 plays such rows: findings/mooncake-traces-refused.sh."""
    lines = [mooncake_line(timestamp=n, input_length=2_048, hash_ids=[1]) for n in range(2)]
    trace = read('{"block_tokens": 512}', *lines)
    assert [(request.input_tokens, [*request.block_ids()]) for request in trace.requests] == [(2_048, [1])] * 2
    assert ideal_hits(trace.requests) == [0, 512]
    with pytest.raises(BadTrace, match=r"line 1, hash_ids.*128 or 128 of 16 tokens"):
        read(*lines)
    with pytest.raises(BadTrace, match=r"line 2, hash_ids.*0 to 1 of 4096 tokens"):
        read('{"block_tokens": 4096}', mooncake_line(input_length=2_048, hash_ids=[1, 2]))


IMPLAUSIBLE = [
    ([mooncake_line(timestamp=n // 3) for n in range(100)], "3,030 requests and 3,030,303 prompt tokens a second"),
    ([mooncake_line(timestamp=n * 7.25) for n in range(100)], "times with fractions, 0.718 s in all"),
    ([mooncake_line(timestamp=n * 90_000, chat_id=n) for n in range(100)], "a request every 89,100 s, read in s"),
    (
        ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
        + [f"{n * 4_000},ChatGPT,100,20,120,Conversation log" for n in range(100)],
        "a request every 3,960 s, read in s",
    ),
]


@pytest.mark.parametrize(("lines", "why"), IMPLAUSIBLE)
def test_a_unit_that_implies_an_implausible_load_is_refused_with_the_way_to_state_another(lines, why):
    with pytest.raises(BadTrace) as refused:
        read(*lines)
    assert why in refused.value.value
    assert '{"time_unit": "s"}' in refused.value.allowed
    assert refused.value.field.lower() == "timestamp"


def test_aiperf_turns_keep_their_delays_after_the_previous_answer():
    trace = read(
        mooncake_line(session_id="a", timestamp=1_000),
        json.dumps({"session_id": "a", "delay": 2_500, "input_length": 1_000, "output_length": 4, "hash_ids": [1, 3]}),
        mooncake_line(timestamp=1_500),
    )
    assert (trace.format, trace.pacing, trace.ignored) == ("aiperf", "closed_loop", ())
    assert times(trace) == [0, 0.5, 2.5]
    assert [request.think_s for request in trace.requests] == [0, 0, 2.5]
    assert [request.session for request in trace.requests] == ["a", "line-3", "a"]
    assert registry.has_think_times("aiperf")


def test_bailian_chats_are_sessions_in_seconds_with_blocks_of_16_tokens():
    rows = [(159, -1, 61.114), (160, 159, 70.5), (161, -1, 71.0), (162, 160, 80.0)]
    lines = [
        mooncake_line(chat_id=chat, parent_chat_id=parent, timestamp=at, input_length=40, hash_ids=[1, 2, 3], turn=1)
        for chat, parent, at in rows
    ]
    trace = read(*lines)
    assert trace.format == "bailian"
    assert times(trace) == [0, 9.386, 9.886, 18.886]
    assert [request.session for request in trace.requests] == ["159", "159", "161", "159"]
    assert trace.requests[0].block_tokens == 16
    assert trace.ignored == ("turn",)


def test_burstgpt_rows_are_seconds_and_failures_are_left_out():
    trace = read(
        "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,s1,ChatGPT,472,18,490,Conversation log",
        "45,s1,ChatGPT,1087,230,1317,Conversation log",
        "46.5,s2,GPT-4,100,0,100,API log",
    )
    assert (trace.format, times(trace), trace.left_out) == ("burstgpt", [0, 40], 1)
    assert [(r.session, r.input_tokens, r.output_tokens) for r in trace.requests] == [
        ("s1", 472, 18),
        ("s1", 1087, 230),
    ]
    assert trace.ignored == ("Log Type", "Model", "Total tokens")


def spend(**changes):
    row = {"request_id": "r", "startTime": "2025-11-03T10:00:00.250Z", "prompt_tokens": 900, "completion_tokens": 40}
    return row | changes


NAMES = ("session_id", "startTime", "prompt_tokens", "completion_tokens", "cache_hit", "status")


@pytest.mark.parametrize("shape", ["list", "pretty", "page", "answer", "lines", "table"])
def test_spend_logs_of_litellm_are_read_in_each_shape(shape):
    rows = [
        spend(session_id="s"),
        spend(startTime="2025-11-03 10:00:01.750+00:00"),
        spend(cache_hit="True"),
        spend(status="failure"),
        spend(completion_tokens=0),
    ]
    texts = {
        "list": json.dumps(rows),
        "pretty": json.dumps(rows, indent=2),
        "page": json.dumps({"data": rows, "total": 5}, indent=2),
        "answer": json.dumps({"data": rows}),
        "lines": "\n".join(map(json.dumps, rows)),
        "table": "\n".join([",".join(NAMES), *(",".join(str(row.get(name, "")) for name in NAMES) for row in rows)]),
    }
    trace = read(texts[shape])
    assert (trace.format, times(trace), trace.left_out) == ("litellm", [0, 1.5], 3)
    assert [request.session for request in trace.requests] == ["s", ""]


def test_a_bad_entry_of_a_json_list_is_refused_at_its_own_line():
    text = json.dumps([spend(), spend(prompt_tokens=-1)], indent=2)
    line = 1 + text[: text.rindex("{")].count("\n")
    with pytest.raises(BadTrace, match=rf"line {line}, prompt_tokens: -1 \(a whole number from 0"):
        read(text)
    with pytest.raises(BadTrace, match="a JSON list of objects"):
        read(text[:-5])


def span(span_id, parent, at_ns, **attributes):
    kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
    found = [
        {"key": key, "value": {kinds[type(value)]: str(value) if isinstance(value, int) else value}}
        for key, value in attributes.items()
    ]
    return {"spanId": span_id, "parentSpanId": parent, "startTimeUnixNano": str(at_ns), "attributes": found}


def test_spans_with_usage_become_one_request_even_if_gateway_and_engine_report_it():
    usage = {"gen_ai.usage.input_tokens": 700, "gen_ai.usage.output_tokens": 30}
    engine = {"gen_ai.usage.prompt_tokens": 700, "gen_ai.usage.completion_tokens": 30}
    start = 1_762_164_000_000_000_000
    spans = [
        span("a", "", start, **usage, **{"gen_ai.conversation.id": "c"}),
        span("b", "a", start + 1_000_000, **engine),
        span("d", "x", start + 2_000_000_000, **engine),
        span("e", "", start),
        span("f", "", start, **{"gen_ai.usage.input_tokens": 700}),
    ]
    resources = [{"scopeSpans": [{"spans": spans}]}]
    document = {"resourceSpans": resources}
    of_tempo = json.dumps({"batches": resources}), json.dumps({"trace": document}, indent=1)
    for text in (json.dumps(document), json.dumps(document, indent=1), *of_tempo):
        trace = read(text)
        assert (trace.format, times(trace), trace.left_out) == ("spans", [0, 2], 1)
        assert [(request.session, request.input_tokens) for request in trace.requests] == [("c", 700), ("", 700)]


def test_a_stream_whose_usage_logfire_logs_at_its_end_arrives_when_it_began():
    """Logfire 5.4.0: findings/logfire-streams.sh."""
    usage = {"gen_ai.usage.input_tokens": 700, "gen_ai.usage.output_tokens": 30}
    log = {"logfire.span_type": "log", "duration": 4.5, **usage}
    plain = {"logfire.span_type": "span", "duration": 4.5, **usage}
    start = 1_762_164_000_000_000_000
    spans = [span("a", "", start + 5_000_000_000, **log), span("b", "", start + 2_000_000_000, **plain)]
    trace = read(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    assert [request.at_s for request in trace.requests] == [0, 1.5]
    broken = span("a", "", start, **{**log, "duration": -1.0})
    with pytest.raises(BadTrace, match=r"line 1, duration: -1.0"):
        read(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [broken]}]}]}))


def test_spans_with_the_attribute_names_of_openinference_become_requests():
    """openinference-instrumentation-openai 0.1.66: findings/logfire-streams.sh."""
    usage = {"llm.token_count.prompt": 700, "llm.token_count.completion": 30}
    named = span("a", "", 1_762_164_000_000_000_000, **usage, **{"session.id": "c"})
    (request,) = read(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [named]}]}]})).requests
    assert (request.session, request.input_tokens, request.output_tokens) == ("c", 700, 30)


def test_arrivals_of_sglang_are_computed_from_end_and_latency_in_both_forms():
    meta = {"id": "r", "prompt_tokens": 300, "completion_tokens": 20, "cached_tokens": 0, "e2e_latency": 1.5}
    lines = [
        "[2025-11-03 10:00:00] server is fired up",
        json.dumps({"timestamp": "2025-11-03T10:00:03.500000", "event": "request.received", "rid": "r", "obj": {}}),
        json.dumps({"timestamp": "2025-11-03T10:00:05", "event": "request.finished", "out": {"meta_info": meta}}),
        f"[2025-11-03 10:00:09] Finish: obj=GenerateReqInput(text='prompt_tokens'), out={{'meta_info': {meta}}}",
    ]
    trace = read(*lines)
    assert (trace.format, times(trace)) == ("sglang", [0, 4])
    assert {(request.input_tokens, request.output_tokens) for request in trace.requests} == {(300, 20)}
    broken = lines[2].replace("300", '"many"')
    with pytest.raises(BadTrace, match=r"line 2, prompt_tokens: 'many'"):
        read(lines[0], broken)


def test_a_debug_log_of_vllm_gives_prefixes_by_tokens_and_an_info_log_says_what_is_missing():
    shared = list(range(32))
    lines = ["INFO 11-03 10:00:00 [api_server.py:1] Starting"]
    for second, name in enumerate("abc"):
        tokens = [*shared, *range(100 + second, 130 + second)]
        lines += [
            f"(APIServer pid=7) DEBUG 11-03 10:00:0{second} [request_logger.py:55] Request {name} details: "
            f"prompt: 'hi', prompt_token_ids: {tokens}, prompt_embeds shape: None.",
            f"(APIServer pid=7) INFO 11-03 10:00:0{second} [request_logger.py:65] Received request {name}: params: x.",
            f"DEBUG 11-03 10:00:09 [request_logger.py:101] Generated response {name} (streaming complete) details: "
            "output_token_ids: [5, 6, 7]",
        ]
    trace = read(*lines[:-1])
    assert (trace.format, times(trace), trace.left_out) == ("vllm", [0, 1], 1)
    coloured = (line.replace("INFO", "\x1b[32mINFO\x1b[0m").replace("DEBUG", "\x1b[36mDEBUG\x1b[0m") for line in lines)
    assert read(*coloured).requests[:2] == trace.requests
    first, second = trace.requests
    assert (first.input_tokens, first.output_tokens, first.block_tokens) == (62, 3, 16)
    assert [*first.block_ids()][:2] == [*second.block_ids()][:2]
    assert len({*first.block_ids()} & {*second.block_ids()}) == 2
    with pytest.raises(BadTrace, match=r"line 2, prompt_token_ids.*at DEBUG"):
        read(lines[0], lines[2])
    older = "INFO 11-03 10:00:09 [logger.py:60] Generated response c: output: 'no', output_token_ids: [5]"
    assert [request.output_tokens for request in read(*lines[:-1], older).requests] == [3, 3, 1]


STARTED = "INFO 11-03 10:00:00 [api_server.py:1] Received request a: params: x.\n"
ASKED = STARTED.replace("INFO", "DEBUG").replace("Received request a: params", "Request a details: prompt_token_ids")
FINISHED = "[2025-11-03 10:00:09] Finish: obj=x, out={'meta_info': {'prompt_tokens': 9, 'completion_tokens': 5}}"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (STARTED + ASKED.replace("x.", "[1,,2]"), r"line 2, token_ids: '1,,2' \(a list of whole numbers\)"),
        (STARTED + ASKED.replace("x.", f"[{'9' * 5000}]"), "line 2, token_ids: '999"),
        (STARTED + ASKED.replace("x.", "[1]") + "Generated response b: output_token_ids: [2]", "at least one request"),
        (STARTED + ASKED.replace("a", "a: Request a" * 50_000).replace("x.", "[x"), "line 2, token_ids: 'x'"),
        (FINISHED, "line 1, e2e_latency: None"),
        (FINISHED.replace("9,", "1.2.3, 'e2e_latency': 1,"), "line 1, prompt_tokens: None"),
        (FINISHED.replace("9,", f"{'9' * 5000}, 'e2e_latency': 1,"), "line 1, prompt_tokens: None"),
        (FINISHED.replace("9,", "0, 'e2e_latency': 1,"), "at least one request"),
        ('no brace: "request.finished"', "at least one request"),
        (FINISHED.replace("9,", "9, 'e2e_latency': 1,") + '\n"request.finished" {', "line 2: '{' .one JSON object"),
        ('{"time_unit": ["s"], "block_tokens": 4}\n' + mooncake_line(), "line 1, time_unit"),
        ("Timestamp,Request tokens,Response tokens\n5,9,0", "at least one request"),
        ("TIMESTAMP,ContextTokens\n2023", r"line 1, GeneratedTokens: None \(the field is missing; Azure CSV has TIME"),
        ("timestamp;ContextTokens;GeneratedTokens\n2023", "line 1, TIMESTAMP: None"),
        ("Timestamp,Model,Response tokens\n5,x,9", "line 1, Request tokens: None"),
        (
            '[\n {"prompt_tokens": 5,\n "completion_tokens": 9}]',
            "line 1, startTime: None .the field is missing; LiteLLM",
        ),
        (mooncake_line().replace("timestamp", "time"), "line 1, timestamp: None"),
        ('{"session": "a", "t": 1, "input_length": 5}', "line 1, runs: None .the field is missing; Coding-agent"),
        ("TIMESTAMP,ContextTokens\r2023", r"line 1: 'TIMESTAMP,ContextTokens\\r2023' \(a line of one of"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(text, refused):
    with pytest.raises(BadTrace, match=refused):
        read(text)


def test_an_attribute_named_like_a_field_of_its_span_does_not_replace_it():
    named = span(
        "a", "", 1_762_164_000_000_000_000, **{"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3}
    )
    named["attributes"] += [{"key": key, "value": {"stringValue": []}} for key in ("spanId", "startTimeUnixNano")]
    assert len(read(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [named]}]}]})).requests) == 1


def test_an_entry_nested_too_deeply_to_be_written_is_refused():
    for depth in range(800, 1_000):  # some can be parsed but not written
        with suppress(BadTrace):
            assert read(json.dumps([spend()])[:-2] + f', "x": {"[" * depth}{"]" * depth}}}]').requests
