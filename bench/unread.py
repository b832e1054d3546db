"""The cost of clients that request streams and never read them: router memory for each, and the wait of others.

    .venv/bin/python -m bench.unread [--streams 135] [--seconds 15] [--chunk 120]

A standalone router stands before an engine that sends events as fast as it can, while another client keeps asking.
"""

import argparse
import asyncio
import os
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import orjson

from bench.burst import process, wait_for
from router.tests.ports import free_ports

MODEL = "unread"
BODY = orjson.dumps({"model": MODEL, "prompt": "x", "stream": True})
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
AT_ONCE = 64  # chunks per write of the engine
PAGES = {
    b"/v1/models": (b"application/json", orjson.dumps({"data": [{"id": MODEL, "max_model_len": 8192}]})),
    b"/health": (b"text/plain", b""),
    b"/metrics": (b"text/plain", b"vllm:num_requests_waiting 0\n"),
}


async def engine(port: int, chunk: int) -> None:
    """Serve endless streams, and a short answer to a request that asks for none."""
    event = b"data: " + orjson.dumps({"choices": [{"index": 0, "text": "x" * chunk}]}) + b"\n\n"
    flood = (b"%x\r\n%b\r\n" % (len(event), event)) * AT_ONCE

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await answer(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length or 0))
        if b'"stream":true' in body:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                writer.write(flood)
                await writer.drain()
        kind, page = PAGES.get(head.split()[1], (b"application/json", b'{"choices":[]}'))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(page), page))

    await (await asyncio.start_server(serve, "127.0.0.1", port)).serve_forever()


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def others(port: int, seconds: float) -> list[float]:
    """Return the duration of each request of another client, 20 per second, for pages that the router answers itself,
    since the engine is busy with its streams.
    """
    took, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        status = (await reader.read()).split()[1]
        took.append(time.monotonic() - began)
        if status != b"200":
            raise SystemExit(f"another client got {status.decode()}")
        writer.close()
        await asyncio.sleep(0.05)
    return took


def unread(port: int, stack: ExitStack) -> None:
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    client.sendall(HEAD % len(BODY) + BODY)


def measure(port: int, pid: int, streams: int, seconds: float) -> None:
    quiet = asyncio.run(others(port, 3.0))
    before = resident(pid)
    with ExitStack() as clients:
        for _ in range(streams):
            unread(port, clients)
        took = asyncio.run(others(port, seconds))
        each = (resident(pid) - before) / streams / 1024
    print("| unread streams | KiB of the router for each | others, median ms | longest ms |")
    print("|---|---|---|---|")
    for count, size, times in ((0, 0.0, quiet), (streams, each, took)):
        print(f"| {count} | {size:,.0f} | {statistics.median(times) * 1000:.1f} | {max(times) * 1000:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=135)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--chunk", type=int, default=120, help="characters of an event")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(engine(options.serve, options.chunk))
    port, behind = free_ports(2)
    with ExitStack() as stack:
        stack.enter_context(process("-m", "bench.unread", "--serve", str(behind), "--chunk", str(options.chunk)))
        wait_for(f"http://127.0.0.1:{behind}/health")
        router = stack.enter_context(
            process("-m", "router", "--instances", f"http://127.0.0.1:{behind}", "--port", str(port))
        )
        wait_for(f"http://127.0.0.1:{port}/healthz", b'"ready":1')
        measure(port, router.pid, options.streams, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
