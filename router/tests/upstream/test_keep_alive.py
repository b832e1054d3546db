"""Signs of life from an API server are no content of the engine behind it."""

import pytest

from router.upstream.answer.keep_alive import has_content


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"\r\n",
        b": ping\n\n",
        b"8\r\n: ping\n\n\r\n",
        b": OPENROUTER PROCESSING\n\n",
        b'event: ping\ndata: {"type": "ping"}\n\n',
        b'23\r\nevent: ping\ndata: {"type":"ping"}\n\n\r\n',
        b'event: ping\r\ndata: { "type": "ping" }\r\n\r\n',
        b"   \n",
        b" ",
        b"1\r\n \r\n",
        b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 3}\n\n',
        b'data: {"at": 9.5, "type": "heartbeat"}\n\n',
    ],
)
def test_comments_pings_and_empty_lines_are_no_content(data: bytes) -> None:
    assert not has_content(data)


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b'2d\r\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n\r\n',
        b': ping\n\ndata: {"choices":[{"text":"a"}]}\n\n',
        b'event: ping\ndata: {"type":"content_block_delta"}\n\n',
        b"data: [DONE]\n\n",
        b"RIFF\x00\x00",
        b":" * 300,
        b'{"type": "ping"}',
        b'data: {"type":"response.output_text.delta","delta":"\\"type\\": \\"ping\\""}\n\n',
    ],
)
def test_anything_else_is_content(data: bytes) -> None:
    assert has_content(data)
