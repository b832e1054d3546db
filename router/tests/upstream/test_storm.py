"""Send five thousand requests, most of which fail in some way, through a router process, which must then be as it was
before.
"""

import asyncio
import json
import os
import random
import re
import socket
import struct
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from router.tests.conftest import entry
from router.tests.engine import break_off, engine, events, reply, stream, write_head
from router.tests.http.test_process import client, start  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REQUESTS = 5_000
AT_ONCE = 40
SEED = 20_240_607
IDLE_S = 90  # the router closes idle connections to engines after 30 s


class Faulty:
    """An engine that behaves by a seeded random generator and counts the requests that it has answered completely."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.served = Counter()
        self.faults = Counter()

    async def __call__(self, made, request, writer):
        name = self.draw.choice(tuple(ENGINE_FAULTS))
        self.faults[name] += 1
        await ENGINE_FAULTS[name](made, request, writer)
        if name in ("serves", "serves slowly"):
            self.served[request.headers["x-request-id"]] += 1


async def reset(made, request, writer):
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def hang_up(made, request, writer):
    writer.close()


async def no_http(made, request, writer):
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    await writer.drain()


async def half_a_head(made, request, writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-le")
    await writer.drain()
    writer.close()


async def short_body(made, request, writer):
    write_head(writer, 200, "content-type: application/json", "content-length: 100")
    writer.write(b"{}")
    await writer.drain()
    writer.close()


async def slowly(made, request, writer):
    await asyncio.sleep(0.02)
    await reply()(made, request, writer)


ENGINE_FAULTS = {
    "serves": reply(),
    "serves slowly": slowly,
    "500": reply({"error": "x"}, 500),
    "503": reply({"error": "x"}, 503),
    "429": reply({"error": "x"}, 429),
    "hangs up": hang_up,
    "resets": reset,
    "breaks a stream off": break_off(events()[:2]),
    "speaks no HTTP": no_http,
    "half a head": half_a_head,
    "short body": short_body,
    "streams whatever is asked": stream(),
}


def raw(request_id, body, more=b""):
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: %b\r\n%bcontent-length: %d\r\n\r\n"
    return head % (request_id.encode(), more, len(body)) + body


def asking(draw):
    return json.dumps(
        {"model": "llama", "prompt": "hello " * draw.randrange(200), "stream": draw.random() < 0.5}
    ).encode()


def too_large(name):
    return raw(name, b"").replace(b": 0\r\n\r\n", b": 99999999\r\n\r\n")


# The requests of a client, and whether it waits for the answer
CLIENTS = {
    "asks": lambda name, draw: (raw(name, asking(draw)), True),
    "asks with an offer of HTTP/2": lambda name, draw: (
        raw(name, asking(draw), b"connection: upgrade\r\nupgrade: h2c\r\n"), True),
    "leaves": lambda name, draw: (raw(name, asking(draw)), False),
    "leaves in its body": lambda name, draw: (raw(name, asking(draw))[:-5], False),
    "leaves in its head": lambda name, draw: (raw(name, asking(draw))[:40], False),
    "sends no JSON": lambda name, draw: (raw(name, b"{nothing"), True),
    "asks for an unknown model": lambda name, draw: (raw(name, b'{"model": "gone"}'), True),
    "speaks no HTTP": lambda name, draw: (b"\x16\x03\x01\x00\x01\r\n\r\n", True),
    "sends too large a head": lambda name, draw: (raw(name, b"{}", b"x-a: " + b"y" * 70_000 + b"\r\n"), True),
    "says a body that is too large": lambda name, draw: (too_large(name), True),
    "pipelines": lambda name, draw: (raw(name, asking(draw)) + raw(f"{name}-b", asking(draw)), True),
    "asks for a WebSocket": lambda name, draw: (
        b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", True),
}  # fmt: skip


async def one(port, number, draw, seen):
    name = draw.choice(tuple(CLIENTS))
    data, waits = CLIENTS[name](f"storm-{number}", draw)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if waits:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            seen[name, int(head.split()[1])] += 1
            await asyncio.wait_for(to_the_end(head, reader), 60)
        else:
            await asyncio.sleep(draw.random() * 0.03)
            seen[name, 0] += 1
    except (ConnectionError, asyncio.IncompleteReadError):
        seen[name, -1] += 1
    except TimeoutError:
        pytest.fail(f"request storm-{number}, which {name}, has no answer after 60 s: {data[:200]!r}")
    finally:
        writer.transport.abort()


async def to_the_end(head, reader):
    """Read the body of the first answer."""
    length = re.search(rb"content-length: (\d+)", head)
    if length:
        await reader.readexactly(int(length[1]))
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n") if b"chunked" in head else await reader.read()


async def storm(port):
    """Return how many requests of each kind got each status; -1 means that the connection was closed, 0 that the client
    did not wait.
    """
    seen, numbers = Counter(), iter(range(REQUESTS))

    async def worker(seed):
        draw = random.Random(seed)
        for number in numbers:
            await one(port, number, draw, seen)

    await asyncio.gather(*(worker(SEED + i) for i in range(AT_ONCE)))
    return seen


def open_files(pid):
    """Count open files except unix sockets, some of which the client of this test's Redis keeps."""
    unix = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    found = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.removeprefix("socket:[").removesuffix("]") not in unix:
            found.append(target)
    return len(found)


async def tasks(asker, url):
    text = (await asker.get(url + "/metrics")).text
    return int(float(re.search(r"^weir_router_tasks ([\d.]+)$", text, re.MULTILINE)[1]))


async def inflight(asker, url):
    text = (await asker.get(url + "/metrics")).text
    return sum(
        float(value) for value in re.findall(r"^weir_router_inflight_requests\{[^}]*\} ([\d.]+)$", text, re.MULTILINE)
    )


async def test_five_thousand_faulted_requests_leave_nothing_behind(start, published, client):  # noqa: F811
    engines = [Faulty(SEED + 1000 + i) for i in range(4)]
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(engine(each)) for each in engines]
        published.policy(failure__breaker_open_s=0.1)
        gone = entry("demo-gone", "http://127.0.0.1:1")
        published.fleet(gone, *(entry(f"demo-{i}", each.url) for i, each in enumerate(made)))
        router = start("--log-level", "error")
        await router.ready(client)
        for _ in range(20):
            await client.get(router.url + "/healthz")
        pid = router.process.pid
        files_before, tasks_before = open_files(pid), await tasks(client, router.url)
        seen = await storm(router.port)
        print(sorted(seen.items()))
        assert sum(seen.values()) == REQUESTS
        judge(seen)
        served = Counter()
        for each in engines:
            served.update(each.served)
            assert set(each.faults) == set(ENGINE_FAULTS)
        assert served
        assert max(served.values()) == 1, "a request was served twice"
        for _ in range(IDLE_S * 4):
            after = open_files(pid), await tasks(client, router.url), await inflight(client, router.url)
            if after[0] <= files_before and after[1] <= tasks_before and not after[2]:
                break
            await asyncio.sleep(0.25)
        assert after[0] <= files_before
        assert after[1] <= tasks_before
        assert after[2] == 0
        assert (await client.get(router.url + "/healthz")).status_code == 200
        assert not router.logged()


def judge(seen):
    """Check that every waiting client got the right answer."""
    assert not {(name, status): n for (name, status), n in seen.items() if status == -1}
    statuses = {name: {status for given, status in seen if given == name} for name in CLIENTS}
    assert statuses["sends no JSON"] == {400}
    assert statuses["asks for an unknown model"] == {404}
    assert statuses["speaks no HTTP"] == {400}
    assert statuses["sends too large a head"] == {431}
    assert statuses["says a body that is too large"] == {413}
    assert statuses["asks for a WebSocket"] == {400}
    for name in ("asks", "asks with an offer of HTTP/2", "pipelines"):
        assert 200 in statuses[name]
        assert statuses[name] <= {200, 429, 500, 502, 503}
