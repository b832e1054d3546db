"""The router limits and drops the trailers of a chunked body, and they have no effect, on real sockets."""

import asyncio
import json

import pytest

from router.http.request_limits import MAX_FRAMING, MAX_TRAILERS
from router.tests.conftest import key_entry
from router.tests.http.test_protocol import get, served  # noqa: F401 - a fixture
from router.tests.http.test_request_limits import BODY, HEAD, code, connect, post  # noqa: F401 - a fixture

CHUNKED = b"transfer-encoding: chunked\r\n"
TRAILERS = b"authorization: Bearer sk-weir-secret-alice\r\nx-weir-pool: nope\r\nx-odd: 1\r\n"


def chunked(body, trailers=b"", more=b""):
    return HEAD + more + CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


async def test_trailers_have_no_effect_and_are_not_forwarded(world, connect):  # noqa: F811
    w = await world(None)
    client = await connect(w)
    client.send(chunked(BODY, TRAILERS) + post("next"))
    assert [(await client.answer())[0] for _ in range(2)] == [200, 200]
    for request in w.engines[0].received:
        assert not {"authorization", "x-weir-pool", "x-odd"} & set(request.headers)


async def test_a_key_in_a_trailer_is_not_a_key(world, connect):  # noqa: F811
    w = await world(None)
    w.published.keys(key_entry("sk-weir-secret-alice"), required=("demo",))
    await w.until(lambda: w.router.pools.auth.ring.by_hash)
    client = await connect(w)
    client.send(chunked(BODY, TRAILERS))
    status, _, body = await client.answer()
    assert (status, code(body)) == (401, "missing_api_key")


@pytest.mark.parametrize(
    "trailers",
    [
        b"x: " + b"y" * MAX_TRAILERS + b"\r\n",
        b"x: y\r\n" * (MAX_TRAILERS // 4),
        b"x: " + b"y" * (20 * MAX_FRAMING),  # never ends
    ],
)
@pytest.mark.parametrize("size", [1_000, 1_000_000])
async def test_trailers_over_the_limit_are_refused_at_once(served, trailers, size):  # noqa: F811
    client = await served.connect()
    sent = chunked(b"body", trailers)
    for start in range(0, len(sent), size):
        client.send(sent[start : start + size])
        await asyncio.sleep(0)
    status, headers, body = await client.answer()
    assert (status, headers["connection"], code(body)) == (431, "close", "trailers_too_large")


async def test_trailers_within_the_limit_are_accepted(served):  # noqa: F811
    client = await served.connect()
    client.send(chunked(b"body", b"x: " + b"y" * (MAX_TRAILERS - 10) + b"\r\n") + get("/next"))
    assert (await client.answer())[2].endswith(b"body")
    assert (await client.answer())[2] == b"GET /next  "
    assert not [name for seen in served.app.seen for name, _ in seen.headers if name == b"x"]


async def test_a_chunk_extension_without_end_is_refused(served):  # noqa: F811
    client = await served.connect()
    client.send(HEAD + CHUNKED + b"\r\n4;" + b"x" * 1000)
    for _ in range(MAX_FRAMING // 10_000 + 2):
        client.send(b"y" * 10_000)
        await asyncio.sleep(0.005)
    status, _, body = await client.answer()
    assert (status, code(body)) == (431, "trailers_too_large")


async def test_a_body_in_chunks_of_one_byte_is_read(served):  # noqa: F811
    client = await served.connect()
    client.send(HEAD + CHUNKED + b"\r\n" + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
    assert (await client.answer())[2].endswith(b" " + b"x" * 100_000)


async def test_a_chunk_that_arrives_byte_by_byte_is_read(served):  # noqa: F811
    client = await served.connect()
    for byte in json.dumps({"a": 1}).encode():
        client.send((HEAD + CHUNKED + b"\r\n" if byte == ord("{") else b"") + b"1;ext=%d\r\n%c\r\n" % (byte, byte))
        await asyncio.sleep(0.002)
    client.send(b"0\r\n\r\n")
    assert (await client.answer())[2].endswith(b'{"a": 1}')
