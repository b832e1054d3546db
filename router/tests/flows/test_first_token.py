"""Splits the first token off one stream, and drops it from another."""

import itertools
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.flows.first_token import Without, chunks, first_token, usage_of

DONE = b"data: [DONE]\n\n"


def chat(text: str | None, finish: str | None = None, **delta: Any) -> bytes:
    content = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": {**content, **delta}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"id": "x", "choices": [choice]}) + b"\n\n"


ROLE = chat("", role="assistant")


def without(beginning: bytes, stream: bytes, size: int = 10_000) -> bytes:
    cut = Without(beginning)
    return b"".join(cut.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + cut.finish()


def rest(said: str, stream: bytes, size: int = 10_000) -> bytes:
    return without(ROLE + chat(said), stream, size)


def test_a_stream_of_one_token_becomes_the_beginning_of_another() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
    begun = first_token(ROLE + chat("one ", "length") + usage + DONE)
    assert begun == ROLE + chat("one ")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_text_already_sent_is_omitted_wherever_reads_end(size: int) -> None:
    stream = ROLE + chat("one ") + chat("two ") + chat(None, "stop") + DONE
    assert rest("one ", stream, size) == chat("two ") + chat(None, "stop") + DONE


def test_the_rest_of_an_event_that_holds_more_than_the_first_token_is_kept() -> None:
    assert rest("one ", chat("one two ") + DONE) == chat("two ") + DONE


def test_a_decoders_first_event_is_dropped_even_if_its_text_differs() -> None:
    assert rest("one ", chat("uno ") + chat("two ") + DONE) == chat("two ") + DONE


def test_an_answer_that_ends_with_its_first_token_gets_its_end() -> None:
    assert rest("one ", ROLE + chat("one ", "length") + DONE) == chat("", "length") + DONE


@pytest.mark.parametrize(("half", "whole"), [("\ufffd", "\U0001f642 "), ("so \ufffd", "so \u00e9t\u00e9 ")])
def test_a_character_that_the_first_token_only_begins_is_sent_whole(half: str, whole: str) -> None:
    begun = first_token(ROLE + chat(half, "length") + call(half, name="look") + DONE)
    stream = ROLE + chat(whole) + call(whole, name="look") + chat("more", "stop") + DONE
    joined = orjson.dumps([one.made for one in chunks(begun + without(begun, stream))]).decode()
    assert ("\ufffd" in joined, joined.count(whole.removeprefix("so "))) == (False, 2)


def test_an_error_is_passed_on() -> None:
    broken = b'data: {"error":{"message":"no"}}\n\n'
    assert rest("one ", ROLE + broken) == broken


def test_the_text_field_of_plain_completions_is_handled() -> None:
    def plain(text: str) -> bytes:
        return b"data: " + orjson.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) + b"\n\n"

    assert without(plain("one "), plain("one ") + plain("two ")) == plain("two ")
    assert first_token(plain("one ")) == plain("one ")


def test_an_incomplete_last_event_is_not_lost() -> None:
    assert rest("one ", chat("one ") + b"data: {") == b"data: {"
    assert rest("one ", b": comment") == b": comment"


def call(arguments: str, index: int = 0, **named: Any) -> bytes:
    function = {"arguments": arguments} | ({"name": named.pop("name")} if "name" in named else {})
    return chat(None, tool_calls=[{"index": index, "function": function, **named}])


def test_a_tool_call_that_the_prefill_did_not_begin_passes_unchanged() -> None:
    begun = call("", id="t", type="function", name="look")
    rest_of_call = begun + call('{"q":') + call(' "x"}') + chat(None, "tool_calls") + DONE
    assert without(first_token(ROLE + chat(None, "length")), ROLE + rest_of_call) == rest_of_call


def test_a_tool_call_that_the_prefill_began_continues_under_its_id() -> None:
    beginning = ROLE + call("", id="mine", type="function", name="look")
    begun = call("", id="other", type="function", name="look") + call('{"q":') + call("", 1, id="b", name="look")
    assert without(beginning, ROLE + begun) == call('{"q":') + call("", 1, id="b", name="look")


def test_reasoning_already_sent_by_the_prefill_is_omitted() -> None:
    stream = ROLE + chat(None, reasoning_content="Let ") + chat(None, reasoning_content="me") + chat("Let ")
    expected = chat(None, reasoning_content="me") + chat("Let ")
    assert without(ROLE + chat(None, reasoning_content="Let "), stream) == expected


def test_data_that_arrives_together_with_the_first_text_is_kept() -> None:
    logprobs = {"content": [{"token": "one ", "logprob": -0.1}]}
    choice = {"index": 0, "delta": {"content": "one "}, "logprobs": logprobs, "finish_reason": None}
    (event,) = [
        line for line in rest("one ", b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n").split(b"\n\n") if line
    ]
    assert orjson.loads(event[6:])["choices"] == [{**choice, "delta": {"content": ""}}]


def test_the_first_token_is_not_repeated_after_the_beginning() -> None:
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{}]}, "token_ids": [7], "stop_reason": 1}
    made = {"choices": [choice], "usage": {"prompt_tokens": 3}, "prompt_token_ids": [1, 2]}
    begun = orjson.loads(first_token(b"data: " + orjson.dumps(made) + b"\n\n")[6:])
    empty = {"logprobs": None, "token_ids": None, "stop_reason": None}
    assert begun == {"choices": [{"index": 0, "delta": {"content": "a"}, **empty}]}


def test_the_usage_of_a_stream_comes_from_its_usage_event() -> None:
    used = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
    assert usage_of(ROLE + chat("a", "length") + used + DONE) == {"prompt_tokens": 3}
    assert usage_of(ROLE + DONE) is None


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":7}\n\n',
        b'data: {"choices":[7,null]}\n\n',
        b'data: {"choices":{"a":1}}\n\n',
        b'data: {"choices":[{"index":[],"delta":7}]}\n\n',
        b'data: {"choices":[{"delta":{"content":{"content":1},"tool_calls":[1,{"index":{}}]}}]}\n\n',
        b'data: {"choices":[{"delta":%b1%b}]}\n\n' % (b'{"a":' * 900, b"}" * 900),
    ],
)
def test_an_event_of_unknown_shape_passes_unchanged(event: bytes) -> None:
    assert rest("one ", event) == event
    assert without(first_token(event), ROLE + chat("one ")).endswith(chat("one "))


# Any answer of one engine, split into two streams


WORDS = st.text('ab{}" é', max_size=3)
FIELDS = st.sampled_from(["content", "reasoning_content", "reasoning", "refusal"])


def _call_parts(index: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    begun = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": "look", "arguments": ""}}
    further = WORDS.map(lambda text: {"index": index, "function": {"arguments": text}})
    return st.lists(further, max_size=3).map(lambda parts: [{"tool_calls": [part]} for part in [begun, *parts]])


def _tokens() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return an answer's deltas, one per token; a delta is empty where a parser waits for more."""
    said = st.lists(st.tuples(FIELDS, WORDS).map(lambda pair: {pair[0]: pair[1]}), max_size=5)
    sound = WORDS.map(lambda data: [{"audio": {"id": "a", "data": data, "transcript": data}}])
    kinds = st.one_of(said, _call_parts(0), _call_parts(1), sound, st.just([{}]))
    return st.lists(kinds, max_size=4).map(lambda parts: [delta for part in parts for delta in part])


def _joined(stream: bytes) -> Any:
    """Return the text that a client assembles from a stream: that of a choice, joined in order of its index."""
    texts: dict[tuple[Any, ...], str] = {}
    ends, tokens, used = [], [], []
    for raw in stream.split(b"\n\n"):
        if not raw.startswith(b"data: {"):
            continue
        made = orjson.loads(raw[6:])
        used += [made["usage"]] if made.get("usage") else []
        for choice in made["choices"]:
            ends += [choice["finish_reason"]] if choice.get("finish_reason") else []
            tokens += choice.get("logprobs") or []
            for place, text in _texts(choice["delta"]):
                texts[place] = texts.get(place, "") + text
    return {place: text for place, text in texts.items() if text}, ends, tokens, used


def _texts(part: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(part, str):
        yield place, part
    elif isinstance(part, dict):
        for name, below in part.items():
            yield from _texts(below, (*place, name))
    elif isinstance(part, list):
        for below in part:
            yield from _texts(below, (*place, below["index"]))


def _written(deltas: list[dict[str, Any]], finish: str, *, tells: bool) -> bytes:
    """Write one engine's stream; `tells` adds log probabilities and usage."""
    made: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    for number, delta in enumerate(deltas):
        told = {"logprobs": [number]} if tells else {}
        made.append({"choices": [{"index": 0, "delta": delta, "finish_reason": None, **told}]})
    made.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    made.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(deltas)}})
    return b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in made) + DONE


@given(_tokens(), st.lists(st.integers(1, 400), min_size=1, max_size=8), st.data())
@settings(max_examples=150, deadline=None)
def test_two_streams_of_one_answer_join_into_that_answer(
    deltas: list[dict[str, Any]], sizes: list[int], data: st.DataObject
) -> None:
    whole = _written(deltas, "stop", tells=True)
    said = data.draw(st.integers(0, min(1, len(deltas))), label="tokens that the prefill tells")
    beginning = first_token(_written(deltas[:said], "length", tells=False))
    cut, at, spliced = Without(beginning), 0, beginning
    for size in itertools.cycle(sizes):
        spliced += cut.feed(whole[at : at + size])
        at += size
        if at >= len(whole):
            break
    assert _joined(spliced + cut.finish()) == _joined(whole)
