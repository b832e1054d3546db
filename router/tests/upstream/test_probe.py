"""The prober with well and badly behaved servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from router.contract.net.http_client import MAX_HEADERS
from router.contract.net.probe import AnswerRefused, ConnectionRefused, Prober, Slow

Serve = Callable[[Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]], Awaitable[str]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[asyncio.Server] = []
    writers: list[asyncio.StreamWriter] = []

    async def start(handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> str:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await handler(reader, writer)

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"

    yield start
    for writer in writers:
        writer.close()
    for server in servers:
        server.close()


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    made = Prober()
    yield made
    made.keep_only(set())
    await asyncio.sleep(0)


async def head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def test_one_connection_serves_many_requests(serve: Serve, prober: Prober) -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await head(reader):
            writer.write(OK)

    url = await serve(handler)
    assert [await prober.get(url, 1) for _ in range(3)] == [(200, b"ok")] * 3
    assert connections == 1


async def test_a_chunked_answer_is_assembled(serve: Serve, prober: Prober) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")

    assert await prober.get(await serve(handler), 1) == (503, b"abc")


async def test_a_server_that_closed_a_kept_connection_is_called_on_a_new_one(serve: Serve, prober: Prober) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(OK)
        if not await head(reader):
            return
        writer.close()  # no second answer

    url = await serve(handler)
    assert await prober.get(url, 1) == (200, b"ok")
    assert await prober.get(url, 1) == (200, b"ok")


async def test_a_server_that_closes_after_each_answer_is_probed_too(serve: Serve, prober: Prober) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        writer.close()

    url = await serve(handler)
    assert [await prober.get(url, 1) for _ in range(2)] == [(200, b"ok")] * 2


async def test_an_answer_without_a_length_ends_with_its_connection(serve: Serve, prober: Prober) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.0 200 OK\r\n\r\nabc")
        writer.close()

    url = await serve(handler)
    assert [await prober.get(url, 1) for _ in range(2)] == [(200, b"abc")] * 2


async def test_unsolicited_bytes_are_not_taken_for_the_next_answer(serve: Serve, prober: Prober) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(OK.replace(b"ok", b"no"))

    url = await serve(handler)
    assert await prober.get(url, 1) == (200, b"ok")
    await asyncio.sleep(0.05)
    assert await prober.get(url, 1) == (200, b"ok")


async def test_a_server_that_does_not_answer_is_slow_and_its_connection_abandoned(serve: Serve, prober: Prober) -> None:
    gone = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        gone.set()

    with pytest.raises(Slow, match=r"longer than 0\.05 s"):
        await prober.get(await serve(handler), 0.05)
    await asyncio.wait_for(gone.wait(), 30)


async def test_a_closed_port_is_refused(prober: Prober) -> None:
    with pytest.raises(ConnectionRefused, match="GET http"):
        await prober.get("http://127.0.0.1:1/health", 1)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab", b"SSH-2.0-OpenSSH\r\n"])
async def test_half_an_answer_or_none_is_refused(serve: Serve, prober: Prober, answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(answer)
        writer.close()

    with pytest.raises(ConnectionRefused):
        await prober.get(await serve(handler), 1)


async def test_connections_to_removed_instances_are_closed(serve: Serve, prober: Prober) -> None:
    closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head(reader):
            writer.write(OK)
        closed.set()

    await prober.get(await serve(handler), 1)
    prober.keep_only(set())
    await asyncio.wait_for(closed.wait(), 30)


def flood(begin: bytes, piece: bytes = b"x" * 65_536) -> Callable[..., Awaitable[None]]:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(begin)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()

    return handler


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (HEAD + b"\r\n", b"vllm:num_requests_running 1\n" * 2000),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"3\r\nabc\r\n" * 2000),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ", b"y" * 65_536),
        (HEAD + b"x: ", b"y" * 65_536),
        (b"HTTP/1.1 ", b"2" * 65_536),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    ],
    ids=["a page", "chunks", "trailers", "a header", "a status line", "continue"],
)
async def test_an_answer_without_end_is_refused_at_its_limit(
    serve: Serve, prober: Prober, begin: bytes, piece: bytes
) -> None:
    url = await serve(flood(begin, piece))
    with pytest.raises(AnswerRefused, match=f"GET {url}: (larger than 100000 bytes|not HTTP)"):
        await prober.get(url, 10, 100_000)


async def test_an_answer_of_the_allowed_size_is_accepted_and_a_longer_one_refused(serve: Serve, prober: Prober) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head(reader):
            writer.write(HEAD + b"content-length: 200000\r\n\r\n" + bytes(200_000))

    url = await serve(handler)
    assert await prober.get(url, 10, 200_000) == (200, bytes(200_000))
    with pytest.raises(AnswerRefused, match="larger than 100000 bytes"):
        await prober.get(url, 10, 100_000)
    assert await prober.get(url, 10, 200_000) == (200, bytes(200_000))


async def test_an_answer_that_arrives_byte_by_byte_is_slow(serve: Serve, prober: Prober) -> None:
    """The limit applies to the whole answer, however steadily it arrives."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(HEAD + b"content-length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)

    with pytest.raises(Slow, match=r"longer than 0\.2 s"):
        await prober.get(await serve(handler), 0.2)


async def test_a_head_of_too_many_headers_is_refused(serve: Serve, prober: Prober) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(HEAD + b"x: y\r\n" * (MAX_HEADERS + 1) + b"content-length: 0\r\n\r\n")

    with pytest.raises(AnswerRefused, match=f"or {MAX_HEADERS} headers"):
        await prober.get(await serve(handler), 5)
