"""The end of a stream gives its usage and its outcome, however the bytes are split and however large its events are."""

import itertools
import json

import pytest

from router.upstream.answer.stream_tail import LARGEST_EVENT, StreamTail, WholeTail

USAGE = {"prompt_tokens": 6000, "completion_tokens": 77}
OTHER = {"prompt_tokens": 1, "completion_tokens": 1}
DONE = b"data: [DONE]\n\n"


def event(document, name=""):
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(document).encode() + b"\n\n"


def words(n):
    return [event({"choices": [{"delta": {"content": f"w{i}"}, "finish_reason": None}]}) for i in range(n)]


def completed(**more):
    response = {"status": "completed", "usage": USAGE, **more}
    return event({"type": "response.completed", "response": response}, "response.completed")


CHAT = [*words(20), event({"choices": [], "usage": USAGE}), DONE]
CONTINUOUS = [event({"choices": [{"delta": {"content": "w"}}], "usage": OTHER})] * 9 + CHAT[-2:]
WITHIN = event({"choices": [{"delta": {"content": "w"}}], "metadata": {"usage": OTHER}, "usage": None})
TOOLS = [{"type": "function", "parameters": {"properties": {"usage": OTHER}}}]
STREAMS = {
    "chat": CHAT,
    "usage in each event": CONTINUOUS,
    "chat with other usages around its own": [WITHIN, *CHAT[:-1], *[WITHIN] * 12, DONE],
    "chat with a large event": [event({"choices": [{"delta": {"content": "x" * (2 * LARGEST_EVENT)}}]}), *CHAT[-2:]],
    "responses": [event({"type": "response.output_text.delta", "delta": "w"}), completed()],
    "responses whose last event is large": [completed(output=["x" * (2 * LARGEST_EVENT)])],
    "responses that repeat large messages behind the usage": [completed(input_messages=["y" * (2 * LARGEST_EVENT)])],
    "responses that repeat the client's tools": [completed(tools=TOOLS)],
    "responses that repeat many of the client's tools": [completed(tools=TOOLS * 20_000, output_messages=TOOLS)],
}


BLANKS = {"LF": [b"\n\n"], "CRLF": [b"\r\n\r\n"], "mixed": [b"\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n\n"]}


def ended_by(parts, blanks):
    """Return the events with these line ends after them in turn."""
    return b"".join(part[:-2] + blank for part, blank in zip(parts, itertools.cycle(blanks), strict=False))


@pytest.mark.parametrize("parts", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("blanks", BLANKS.values(), ids=BLANKS)
def test_the_streams_own_usage_is_read_however_it_is_split(parts, blanks):
    whole = ended_by(parts, blanks)
    for size in (7, 1_000, 65_536, len(whole)) if len(whole) < 10_000 else (1_000, 65_536, len(whole)):
        tail = StreamTail()
        for start in range(0, len(whole), size):
            tail.add(whole[start : start + size])
        ended = tail.ended()
        assert (ended.usage, ended.error, ended.is_whole) == (USAGE, None, True)


@pytest.mark.parametrize(
    "parts",
    [
        [*words(3), event({"error": {"message": "EngineCore is dead", "code": 500}}), DONE],
        [*words(3), event({"choices": [{"delta": {}, "finish_reason": "abort"}]}), DONE],
        [
            *words(3),
            event({"error": {"message": "EngineCore is dead"}}),
            *[b": ping\n\n", event({"type": "ping"})] * 6,
            DONE,
        ],
        [event({"type": "response.failed", "response": {"status": "failed", "error": {"message": "EngineCore is"}}})],
        [event({"type": "error", "error": {"type": "api_error", "message": "EngineCore is dead"}}, "error")],
    ],
)
def test_an_error_among_the_last_events_counts_against_the_engine(parts):
    tail = StreamTail()
    for part in parts:
        tail.add_event(part)
    error = tail.ended().error
    assert error is not None
    assert not error.is_clients
    assert "EngineCore is" in error.message or "abort" in error.message


@pytest.mark.parametrize("blank", BLANKS["mixed"])
@pytest.mark.parametrize("further", [b"", DONE])
def test_an_error_after_a_large_event_is_read_wherever_the_blank_line_between_is_split(blank, further):
    large = event({"choices": [{"delta": {"content": "x" * LARGEST_EVENT}}]})[:-2]
    error = event({"error": {"message": "EngineCore is dead"}}) + further
    whole, places = large + blank + error.replace(b"\n\n", blank), [len(large) + n for n in range(len(blank) + 1)]
    for cuts in (*([place] for place in places), places):
        tail = StreamTail()
        for start, end in itertools.pairwise([0, *cuts, len(whole)]):
            tail.add(whole[start:end])
        assert "EngineCore is" in tail.ended().error.message, cuts


@pytest.mark.parametrize("ping", [b": ping\n\n", b": ping\r\n\r\n"])
def test_an_error_before_many_comments_counts_against_the_engine(ping):
    tail = StreamTail()
    for part in [*words(3), event({"error": {"message": "EngineCore is dead"}}), *[ping] * 40, DONE]:
        tail.add(part)
    assert "EngineCore is" in tail.ended().error.message


@pytest.mark.parametrize("blanks", BLANKS.values(), ids=BLANKS)
def test_an_error_after_content_is_read_whatever_ends_the_lines(blanks):
    tail = StreamTail()
    tail.add(ended_by([*words(3), event({"error": {"message": "EngineCore is dead"}}), DONE], blanks))
    assert "EngineCore is" in tail.ended().error.message


def choice(index, finish=None):
    return {"index": index, "delta": {"content": "w"}, "finish_reason": finish}


@pytest.mark.parametrize(
    "failure",
    [
        *(
            {"choices": [choice(0, abort)]}
            for abort in ("abort", {"type": "abort", "message": "m"}, {"message": "m", "type": "abort"})
        ),
        {"error": {"object": "error", "message": "timeout", "type": "INTERNAL_SERVER_ERROR", "code": 500}},
        {"error": "timeout"},
    ],
)
@pytest.mark.parametrize("several", [True, False])
def test_a_stream_fails_if_one_of_its_answers_stops_long_before_the_end(several, failure):
    parts = [event({"choices": [choice(0), choice(1)]}), event(failure)]
    parts += [event({"choices": [choice(1, "stop" if place == 39 else None)]}) for place in range(40)]
    for sink in ("add", "add_event"):
        tail = StreamTail(several=several)
        for part in [*parts, event({"choices": [], "usage": USAGE}), DONE]:
            getattr(tail, sink)(part)
        ended = tail.ended()
        assert (ended.is_whole, ended.usage) == (True, USAGE)
        assert (ended.error is not None) == several


def test_a_stream_without_its_last_event_is_incomplete():
    tail = StreamTail()
    for part in words(3):
        tail.add(part)
    assert not tail.ended().is_whole


def test_a_finish_reason_without_a_last_event_is_reported():
    tail = StreamTail()
    tail.add(event({"choices": [{"delta": {}, "finish_reason": "stop"}]}) + event({"choices": [], "usage": USAGE}))
    ended = tail.ended()
    assert (ended.is_whole, ended.finishes, ended.usage) == (False, True, USAGE)


def test_messages_report_their_usage_in_two_parts():
    tail = StreamTail(reports_twice=True)
    tail.add(event({"type": "message_start", "message": {"usage": {"input_tokens": 9}}}))
    tail.add(event({"type": "message_delta", "usage": {"output_tokens": 5}}) + event({"type": "message_stop"}))
    ended = tail.ended()
    assert (ended.first_usage, ended.usage, ended.is_whole) == ({"input_tokens": 9}, {"output_tokens": 5}, True)


def end_of_whole(raw):
    tail = WholeTail()
    for start in range(0, len(raw), 65_536):
        tail.add(raw[start : start + 65_536])
    return tail.ended()


def test_a_large_whole_answer_reports_its_usage_and_its_error():
    for document in ({"data": [0.5] * 300_000, "usage": USAGE}, {"usage": USAGE, "data": ["x"] * 300_000}):
        raw = json.dumps(document).encode()
        ended = end_of_whole(raw)
        assert (ended.usage, ended.error) == (USAGE, None)
        assert "within its JSON" in end_of_whole(raw[:-100]).error.message


@pytest.mark.parametrize("gave_up", [{"finish_reason": "abort"}, {"error": {"message": "abort"}}])
def test_a_large_whole_answer_may_have_been_aborted(gave_up):
    choice = {"index": 0, "message": {"content": "x" * 300_000}, "logprobs": {"content": [{"bytes": [1]}] * 9_999}}
    assert end_of_whole(json.dumps({"choices": [choice | {"finish_reason": "stop"}]}).encode()).error is None
    assert "abort" in end_of_whole(json.dumps({"choices": [choice | gave_up]}).encode()).error.message
