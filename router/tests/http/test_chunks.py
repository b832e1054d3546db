"""The client gets the same events, however an engine frames a stream and however the stream is split into reads."""

import asyncio
import json
from unittest.mock import Mock

import httptools
import pytest
from msgspec.structs import replace

from router.http.client import IncomingRequest
from router.http.exchange import HttpExchange
from router.request.call import Call
from router.request.request import NOT_READ
from router.serving.answer import relay
from router.serving.answer.relay import BegunAnswer
from router.tests.engine import USAGE
from router.upstream.connection import Connection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%b\r\n"
CHUNKED = HEAD % b"transfer-encoding: chunked\r\n"
LAST = b"0\r\n\r\n"
WORDS = [b'data: {"choices":[{"delta":{"content":"word %d"}}]}\n\n' % i for i in range(4)]
COUNTS = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"


def chunk(data, size=b"%x"):
    return size % len(data) + b"\r\n" + data + b"\r\n"


class Body:
    """The data that a client reads from the chunks of an answer."""

    def __init__(self, raw):
        self.data, self.whole = b"", False
        httptools.HttpResponseParser(self).feed_data(raw)

    def on_body(self, data):
        self.data += data

    def on_message_complete(self):
        self.whole = True


class Passage:
    """A stream from a fake engine socket to a fake client socket."""

    def __init__(self, *, strip=True, http_1_0=False):
        self.engine, self.client = Mock(), Mock()
        self.engine.get_extra_info.return_value = None
        self.engine.is_closing.return_value = False
        self.connection = Connection(Mock(connections=set()), asyncio.get_running_loop())
        self.connection.connection_made(self.engine)
        self.flow = Mock(write_paused=False)
        self.exchange = HttpExchange(IncomingRequest("", b"", [], ""), Mock(), self.client, self.flow, Mock())
        self.exchange.http_1_0 = http_1_0
        self.call = Call("r", "/v1/audio/transcriptions", 0.0, 0.0, request=replace(NOT_READ, strip_usage=strip))
        self.connection.start(b"", 1.0)

    async def read(self, head, *reads):
        self.connection.data_received(head)
        answer = BegunAnswer(self.connection, b"", streams=True)
        self.over = asyncio.ensure_future(relay.forward(self.call, answer, self.exchange))
        await asyncio.sleep(0)
        await self.read_on(*reads)

    async def read_on(self, *reads):
        for data in reads:
            self.connection.data_received(data)
            await asyncio.sleep(0)

    async def body(self):
        await asyncio.sleep(0)
        assert self.over.done()
        self.over.result()
        return Body(self.sent)

    @property
    def writes(self):
        return [call.args[0] for call in self.client.write.call_args_list]

    @property
    def sent(self):
        return b"".join(self.writes)


async def test_a_chunk_that_holds_one_event_is_passed_on_unchanged():
    passage = Passage()
    chunks = [chunk(word, size) for word, size in zip(WORDS, (b"%x", b"%x", b"%X", b"%x"), strict=True)]
    await passage.read(CHUNKED + chunks[0], *chunks[1:], chunk(COUNTS), LAST)
    assert all(a is b for a, b in zip(passage.writes[1:4], chunks[1:], strict=True))
    body = await passage.body()
    assert (body.data, body.whole) == (b"".join(WORDS), True)
    assert passage.call.outcome.usage.output_tokens == USAGE["completion_tokens"]
    assert passage.connection.done


@pytest.mark.parametrize("size", [16, 17, 255, 256, 4095, 4096, 70_000])
async def test_chunks_of_every_size_are_passed_on_unchanged_if_they_hold_one_event(size):
    event = b"data: %b\n\n" % (b"x" * (size - 8))
    reads = [chunk(event), chunk(b"event: a\n" + event), chunk(b": %b\n\n" % event[4:-2])]
    passage = Passage()
    await passage.read(CHUNKED + chunk(WORDS[0]), *reads)
    assert [any(read is sent for sent in passage.writes) for read in reads] == [True, True, False]
    await passage.read_on(LAST)
    assert (await passage.body()).data == WORDS[0] + event + b"event: a\n" + event + b": %b\n\n" % event[4:-2]


async def test_a_chunk_with_a_wrong_size_is_not_passed_on():
    passage = Passage()
    await passage.read(CHUNKED + chunk(WORDS[0]), b"10\r\n" + WORDS[1] + b"\r\n")
    assert passage.over.done()
    assert passage.over.exception() is not None
    assert WORDS[1] not in passage.sent


FRAMINGS = {
    "one event each": [chunk(WORDS[1]), chunk(WORDS[2])],
    "two in one read": [chunk(WORDS[1]) + chunk(WORDS[2])],
    "upper case": [chunk(WORDS[1], b"%X"), chunk(WORDS[2], b"%X")],
    "leading zeros": [chunk(WORDS[1], b"%04x"), chunk(WORDS[2], b"00%x")],
    "an extension": [chunk(WORDS[1], b"%x;a=b"), chunk(WORDS[2])],
    "two events in one chunk": [chunk(WORDS[1] + WORDS[2])],
    "an event in two chunks": [chunk(WORDS[1][:9]), chunk(WORDS[1][9:]), chunk(WORDS[2])],
    "usage in the middle": [chunk(WORDS[1]), chunk(COUNTS), chunk(WORDS[2])],
    "usage in two chunks": [chunk(WORDS[1]), chunk(COUNTS[:25]), chunk(COUNTS[25:]), chunk(WORDS[2])],
    "trailers": [chunk(WORDS[1]), chunk(WORDS[2]), b"0\r\nx-sum: 1\r\n\r\n"],
}


@pytest.mark.parametrize("reads", FRAMINGS.values(), ids=FRAMINGS)
@pytest.mark.parametrize("http_1_0", [False, True])
async def test_a_stream_is_the_same_however_it_is_framed(reads, http_1_0):
    passage = Passage(http_1_0=http_1_0)
    await passage.read(CHUNKED + chunk(WORDS[0]), *reads, *([] if reads[-1].startswith(b"0\r\n") else [LAST]))
    body = await passage.body()
    assert body.data == b"".join(WORDS[:3])
    assert body.whole is not http_1_0  # in HTTP/1.0 the end of the connection ends the answer
    assert (passage.call.outcome.usage is not None) == (b"completion_tokens" in b"".join(reads))


@pytest.mark.parametrize("strip", [True, False])
async def test_a_stream_is_the_same_wherever_reads_end(strip):
    stream = b"".join(chunk(data) for data in (*WORDS[:2], COUNTS, WORDS[2])) + LAST
    for cut in range(1, len(stream)):
        passage = Passage(strip=strip)
        await passage.read(CHUNKED, stream[:cut], stream[cut:])
        body = await passage.body()
        assert body.data == b"".join((*WORDS[:2], *([] if strip else [COUNTS]), WORDS[2]))
        assert body.whole
        assert passage.call.outcome.usage.output_tokens == USAGE["completion_tokens"]


async def test_usage_split_over_two_chunks_is_read_if_it_is_not_removed():
    passage = Passage(strip=False)
    cut = COUNTS.index(b"usage") + 2
    await passage.read(CHUNKED + chunk(WORDS[0]), chunk(COUNTS[:cut]), chunk(COUNTS[cut:]), chunk(WORDS[1]), LAST)
    assert (await passage.body()).data == WORDS[0] + COUNTS + WORDS[1]
    assert passage.call.outcome.usage.output_tokens == USAGE["completion_tokens"]


LOOKS_LIKE_A_CHUNK = chunk(WORDS[1])


async def test_bytes_inside_a_chunk_that_look_like_a_chunk_are_not_parsed_as_one():
    passage = Passage()
    begun, rest = chunk(WORDS[0] + LOOKS_LIKE_A_CHUNK + b"\n").split(LOOKS_LIKE_A_CHUNK)
    await passage.read(CHUNKED, begun, LOOKS_LIKE_A_CHUNK, rest, LAST)
    assert (await passage.body()).data == WORDS[0] + LOOKS_LIKE_A_CHUNK + b"\n"


async def test_bytes_in_an_unchunked_stream_that_look_like_a_chunk_are_not_parsed_as_one():
    passage = Passage()
    data = WORDS[0] + LOOKS_LIKE_A_CHUNK + b"\n\n"
    await passage.read(HEAD % b"content-length: %d\r\n" % len(data) + WORDS[0], LOOKS_LIKE_A_CHUNK, b"\n\n")
    assert (await passage.body()).data == data


async def test_reading_from_an_engine_pauses_while_its_client_reads_more_slowly():
    passage = Passage()
    await passage.read(CHUNKED + chunk(WORDS[0]))
    passage.flow.write_paused = True
    await passage.read_on(chunk(WORDS[1]))
    passage.engine.pause_reading.assert_called_once()
    passage.flow.write_paused = False
    passage.exchange.on_room()
    passage.engine.resume_reading.assert_called_once()
    await passage.read_on(LAST)
    assert (await passage.body()).data == WORDS[0] + WORDS[1]


async def test_a_chunk_counts_as_a_keep_alive_of_the_stream():
    passage = Passage()
    await passage.read(CHUNKED + chunk(WORDS[0]))
    for word in WORDS[1:]:
        passage.connection.check_quiet(1.0, 2.0)
        passage.connection.check_quiet(1.0, 2.0)
        await passage.read_on(chunk(word))
    await passage.read_on(LAST)
    assert (await passage.body()).whole


@pytest.mark.parametrize("sign", [chunk(b": ping\n\n"), b"\r\n"])
async def test_a_keep_alive_after_a_chunk_does_not_hide_it(sign):
    passage = Passage()
    await passage.read(CHUNKED + chunk(WORDS[0]))
    for word in WORDS[1:]:
        await passage.read_on(chunk(word)[: -2 if sign == b"\r\n" else None], sign)
        passage.connection.check_quiet(1.0, 1.0)
    await passage.read_on(LAST)
    assert (await passage.body()).whole


async def test_bytes_after_the_end_of_a_stream_are_dropped():
    passage = Passage()
    await passage.read(CHUNKED + chunk(WORDS[0]))
    passage.connection.data_received(LAST)
    passage.connection.data_received(chunk(WORDS[1]))
    passage.engine.abort.assert_called_once()
    assert (await passage.body()).data == WORDS[0]
