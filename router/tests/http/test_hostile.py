"""Whatever bytes a client sends, it gets complete HTTP responses or is disconnected, and other clients are served.

A seeded generator damages requests of a small grammar. The files in hostile/ are sent as well, each at once, in pieces
and byte by byte: add a file there for every case that was discovered elsewhere.
"""

import asyncio
import random
from pathlib import Path

import httptools
import pytest

from router.http import protocol, request_limits
from router.tests.http.test_protocol import get, served  # noqa: F401 - a fixture

FILES = sorted((Path(__file__).parent / "hostile").glob("*.http"))

METHODS = (b"GET", b"POST", b"HEAD", b"CONNECT", b"get", b"PRI", b"\xff", b"")
TARGETS = (b"/", b"/a?b=%zz", b"*", b"http://x/y", b"//", b"/%00", b"/\xc3\xa4", b"/" + b"a" * 9000, b"")
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.9", b"http/1.1", b"HTTP/1.1 ", b"")
ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b" \r\n", b"\x00\r\n")
HEADERS = (
    *(b"host: x", b"connection: close", b"connection: keep-alive, upgrade", b"upgrade: h2c", b"upgrade: websocket"),
    *(b"expect: 100-continue", b"content-length: 3", b"content-length: 99999999999999999999", b"content-length: -1"),
    *(
        b"content-length: 3, 3",
        b"content-length: +3",
        b"transfer-encoding: chunked",
        b"transfer-encoding: gzip, chunked",
    ),
    *(
        b"transfer-encoding: chunked, identity",
        b"Transfer-Encoding : chunked",
        b" folded: x",
        b"x",
        b": empty",
        b"x: \x01",
    ),
    *(b"te: trailers", b"trailer: authorization", b"x: " + b"y" * 20_000),
)
BODIES = (
    *(b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\nauthorization: z\r\n\r\n", b"3\nabc\n0\n\n"),
    *(b"ffffffffffffffffffff\r\n", b"-1\r\n", b"3\r\nabcd\r\n", b"0\r\n\r\n" * 3, b"\r\n" * 50, b"\x16\x03\x01\x02"),
)


def request(draw):
    first = b" ".join((draw.choice(METHODS[:3]), draw.choice(TARGETS), draw.choice(VERSIONS[:2])))
    if draw.random() < 0.3:
        first = b" ".join((draw.choice(METHODS), draw.choice(TARGETS), draw.choice(VERSIONS)))
    lines = [first, *(draw.choice(HEADERS) for _ in range(draw.randrange(5)))]
    end = draw.choice(ENDS)
    return end.join(lines) + end + end + draw.choice(BODIES)


def damaged(draw, data):
    made = bytearray(data)
    for _ in range(draw.choice((0, 0, 1, 3))):
        place = draw.randrange(len(made) + 1)
        kind = draw.randrange(3)
        if kind == 0:
            made[place:place] = bytes([draw.randrange(256)]) * draw.choice((1, 2, 50))
        elif kind == 1:
            del made[place : place + draw.randrange(8)]
        else:
            made[place : place + 1] = bytes([draw.randrange(256)])
    return bytes(made)


class Reader:
    """A reader that raises an error for anything but a response."""

    def __init__(self):
        self.parser = httptools.HttpResponseParser(self)
        self.begun = self.whole = 0

    def on_message_begin(self):
        self.begun += 1

    def on_message_complete(self):
        self.whole += 1


async def sent(served, pieces, finish):  # noqa: F811
    """Send the bytes and read to the end; the responses must be complete."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    found = Reader()
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if finish:
            writer.write_eof()
        async with asyncio.timeout(20):
            while data := await reader.read(65536):
                found.parser.feed_data(data)
    except OSError:  # reset, because the router did not read the client's bytes
        pass
    except httptools.HttpParserError as error:
        raise AssertionError(f"{pieces!r:.500}: {error}") from error
    finally:
        writer.close()
    assert found.begun == found.whole, pieces


@pytest.fixture(autouse=True)
def quick(monkeypatch, served):  # noqa: F811
    for name in ("HEAD_S", "BODY_S", "KEEP_ALIVE_S"):
        monkeypatch.setattr(request_limits, name, 0.15)
    monkeypatch.setattr(protocol, "LINGER_S", 0.05)
    monkeypatch.setattr(protocol, "ANSWER_S", 0.05)
    served.app.may.set()


def cut(draw, data):
    if draw.random() < 0.5:
        return [data]
    places = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(1, 6)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_requests_get_complete_responses_or_none(served, seed, caplog):  # noqa: F811
    draw = random.Random(seed)
    cases = []
    for _ in range(60):
        data = b"".join(damaged(draw, request(draw)) for _ in range(draw.choice((1, 1, 2, 12))))
        cases.append((cut(draw, data), draw.random() < 0.3))
    await asyncio.gather(*(sent(served, pieces, finish) for pieces, finish in cases))
    client = await served.connect()
    client.send(get("/after"))
    assert (await client.answer())[2] == b"GET /after  "
    client.writer.close()
    await served.until(lambda: not served.server.connections)
    await served.until(lambda: not served.server.tasks)
    assert served.server.clients.body_bytes == 0
    assert (len(served.server.deadlines), len(served.server.stalls), served.server.newcomers) == (0, 0, {})
    assert not [record for record in caplog.records if "HTTP" not in record.message and record.name == "asyncio"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_each_recorded_case_gets_complete_responses_or_none(served, file, size):  # noqa: F811
    data = file.read_bytes()
    await sent(served, [data[start : start + size] for start in range(0, len(data), size)], False)
