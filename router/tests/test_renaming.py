"""The client reads its own name of the model, however the bytes arrive; the engine gets the name it knows."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.serving.answer.renaming import LARGEST, LONGEST, MOST_EVENTS, Rename
from router.tokenize import prompt


def passed(served, asked, *parts):
    rename = Rename(served, asked)
    return b"".join([*map(rename.feed, parts), rename.finish()])


def cut(data, places):
    ends = sorted({min(place, len(data)) for place in places})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


EVENT = b'data: {"id":"x","model":"llama","choices":[{"delta":{"content":"hi"}}]}\n\n'


@example([EVENT.index(b"llama") + len(b'llama"')])  # a read ends after the name, at a quote that may be escaped
@given(st.lists(st.integers(0, 3 * len(EVENT)), max_size=12))
def test_every_event_is_renamed_wherever_the_stream_is_split(places):
    assert passed("llama", "chat-large", *cut(EVENT * 3, places)) == EVENT.replace(b"llama", b"chat-large") * 3


@pytest.mark.parametrize(
    ("body", "renamed"),
    [
        (b'{"model": "llama", "x": 1}', b'{"model": "chat", "x": 1}'),
        (b'{"message":{"model":"llama"}}', b'{"message":{"model":"chat"}}'),
        (b'{"model":"llama-2"}', b'{"model":"chat"}'),
        (b'{"input":{"model":"other"},"model":"llama-2"}', b'{"input":{"model":"other"},"model":"chat"}'),
        (b'{"input":{"model":"other"}}', b'{"input":{"model":"other"}}'),
        (
            b'{"response":{"model":"long","input":{"model":"x"}}}',
            b'{"response":{"model":"chat","input":{"model":"x"}}}',
        ),
        (b'[{"model":"other"}]', b'[{"model":"other"}]'),
        (b'{"model":"cut', b'{"model":"cut'),
        (b'{"model":null}', b'{"model":null}'),
    ],
)
def test_only_the_model_of_the_answer_is_renamed(body, renamed):
    assert passed("llama", "chat", body) == renamed


def test_the_models_own_text_is_unchanged():
    said = json.dumps({"content": '{"model":"llama"}', "model": "llama"}).encode()
    assert json.loads(passed("llama", "chat", said)) == {"content": '{"model":"llama"}', "model": "chat"}


@pytest.mark.parametrize("served", ["org/llama", "modell-ü", 'a"b'])
def test_names_are_recognised_however_they_are_escaped(served):
    for text in (json.dumps(served), json.dumps(served, ensure_ascii=False), json.dumps(served).replace("/", "\\/")):
        body = b'{"model":%b}' % text.encode()
        assert json.loads(passed(served, "chat", body)) == {"model": "chat"}


@given(st.lists(st.integers(0, 3 * len(EVENT)), max_size=12))
def test_another_name_of_the_engine_is_renamed_wherever_the_stream_is_split(places):
    assert passed("short", "chat-large", *cut(EVENT * 3, places)) == EVENT.replace(b"llama", b"chat-large") * 3


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_a_name_after_events_without_one_is_renamed(end):
    first = (b": ping" + end) * MOST_EVENTS + b"event: ping" + end + b'data: {"type":"x"}' + end
    begun = b'event: message_start\ndata: {"message":{"model":"long","usage":{}}}' + end
    assert passed("short", "chat", first, begun) == first + begun.replace(b"long", b"chat")
    rename = Rename("short", "chat")
    assert rename.feed(first) == first


def test_a_stream_without_a_model_name_is_soon_passed_on_unread():
    rename = Rename("short", "chat")
    for _ in range(MOST_EVENTS):
        assert rename.feed(b'data: {"x":1}\n\n')
    assert b"long" in rename.feed(b'data: {"model":"long"}\n\n')


def test_a_body_that_is_neither_events_nor_json_passes_at_once():
    assert Rename("short", "chat").feed(b"RIFF....WAVE") == b"RIFF....WAVE"


def test_a_large_answer_is_not_held_back():
    assert len(Rename("short", "chat").feed(b'{"x":"' + b"y" * LARGEST)) > LARGEST


def test_nothing_is_held_back_for_long():
    rename = Rename("llama", "chat")
    assert rename.feed(EVENT).endswith(b"\n\n")
    assert rename.feed(b'{"model":"' + b"x" * 2 * LONGEST)


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ('{"model":"chat","n":1}', '{"model":"llama","n":1}'),
        (' { "model" : "chat" , "n":1}', ' { "model" : "llama" , "n":1}'),
        ('{"n":1,"model":"chat"}', '{"n":1,"model":"llama"}'),
        ('{"user":"\\"model\\":","model":"chat"}', '{"user":"\\"model\\":","model":"llama"}'),
        ('{"a":{"model":"other"},"model":"chat"}', '{"a":{"model":"other"},"model":"llama"}'),
        ('{"a":{"model":"chat"},"model":"chat"}', '{"a":{"model":"chat"},"model":"llama"}'),
        ('{"model":"other","model":"chat"}', '{"model":"other","model":"llama"}'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_gets_the_body_with_its_own_name_and_nothing_else_is_changed(body, sent, stream):
    asked = prompt.with_usage(body.encode(), json.loads(body)) if stream else body.encode()
    made = prompt.renamed(asked, "chat", "llama")
    wanted = json.loads(sent) | ({"stream_options": {"include_usage": True}} if stream else {})
    assert json.loads(made) == wanted
