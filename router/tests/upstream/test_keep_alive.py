"""Keep-alive bytes from an API server do not count as content of the engine behind it."""

import json

import pytest

from router.upstream.answer.keep_alive import LONGEST, content

EMPTY = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "llama", "usage": None}
CHUNKS = [
    {**EMPTY, "choices": [{"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": None}]},
    {**EMPTY, "choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": []}, "finish_reason": None}]},
    {**EMPTY, "choices": [{"index": 0, "text": "", "finish_reason": None}]},
    {**EMPTY, "choices": [], "usage": {"completion_tokens": 0}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}},
    {"type": "response.output_text.delta", "delta": ""},
    {"type": "response.in_progress", "response": {"status": "in_progress"}},
]


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"\r\n",
        b": ping\n\n",
        b": OPENROUTER PROCESSING\n\n",
        b'event: ping\ndata: {"type": "ping"}\n\n',
        b'event: ping\r\ndata: { "type": "ping" }\r\n\r\n',
        b"   \n",
        b":" * 300,
        b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 3}\n\n',
        b'data: {"at": 9.5, "type": "heartbeat"}\n\n',
        b"data:\n\n",
        b'lama", "choices": []}\n\n: the end of an event whose beginning was heard\n\n',
        *(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in CHUNKS),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_comments_pings_and_empty_events_are_not_content_however_they_are_split(data: bytes, piece: int) -> None:
    line = b""
    for start in range(0, 3 * len(data), piece):
        heard, line = content(line + (3 * data)[start : start + piece], is_stream=True)
        assert not heard


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b'data:{"choices":[{"delta":{"content":"a"}}]}\r\n',
        b': ping\n\ndata: {"choices":[{"text":"a"}]}\n\n',
        b'event: ping\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n',
        b"data: [DONE]\n\n",
        b'data: {"error": "it failed"}\n\n',
        b'data: {"choices": [{"delta": {"content": "' + b"a" * LONGEST,
        b'data: {"type":"response.output_text.delta","delta":"\\"type\\": \\"ping\\""}\n\n',
    ],
)
def test_any_other_event_is_content(data: bytes) -> None:
    assert content(data, is_stream=True) == (True, b"")


@pytest.mark.parametrize(("data", "heard"), [(b" ", False), (b" \r\n", False), (b"RIFF\0", True), (b'{"a', True)])
def test_any_byte_but_whitespace_is_content_of_a_whole_answer(data: bytes, heard: bool) -> None:
    assert content(data, is_stream=False) == (heard, b"")
