"""Distinguish a dead host from a busy engine, so that its requests soon go elsewhere."""

import asyncio
import errno
import socket

import pytest

from router.tests.engine import first_then_wait, hang
from router.upstream import host_liveness
from router.upstream.connection import Connection
from router.upstream.errors import HostSilent


def demo(w, name):
    return w.router.pools.get("demo").endpoints[name]


def port_of(transport):
    return transport.get_extra_info("peername")[1]


@pytest.fixture
def gone(monkeypatch):
    """Return ports whose host is gone."""
    ports = set()
    monkeypatch.setattr(host_liveness, "is_gone", lambda transport: port_of(transport) in ports)
    return ports


async def test_a_request_to_a_lost_host_is_retried_elsewhere(world, gone):
    w = await world(hang, None)
    gone.add(w.engines[0].port)
    answers = [await w.ask() for _ in range(2)]
    assert [answer.headers["x-weir-instance"] for answer in answers] == ["demo-1", "demo-1"]
    receipts = [await w.receipt(answer) for answer in answers]
    (attempt,) = (each for receipt in receipts for each in receipt["attempts"] if each["instance"] == "demo-0")
    assert attempt["error"] == "its host does not answer"
    assert demo(w, "demo-0").breaker.state == "open", "the next one would wait as long"


async def test_idle_connections_to_a_lost_host_are_not_tried_again(world, gone):
    w = await world(None)
    await asyncio.gather(*(w.ask() for _ in range(4)))
    upstream = demo(w, "demo-0").upstream
    w.engines[0].behaviour = hang
    asking = asyncio.ensure_future(w.ask())
    await w.until(lambda: any(connection.busy for connection in upstream.connections))
    gone.add(w.engines[0].port)
    assert (await asking).status_code == 502
    await w.until(lambda: not upstream.connections)


async def test_a_stream_from_a_lost_host_ends_with_an_error_event(world, gone):
    w = await world(first_then_wait)
    asking = asyncio.ensure_future(w.ask(stream=True))
    await w.until(lambda: w.engines[0].received)
    gone.add(w.engines[0].port)
    assert b"its host does not answer" in (await asking).content


@pytest.mark.parametrize("number", host_liveness.UNREACHABLE)
async def test_a_lost_host_is_distinguished_from_an_engine_that_hung_up(world, number):
    w = await world(hang)
    connection = Connection(demo(w, "demo-0").upstream, asyncio.get_running_loop())
    connection.busy = True
    connection.connection_lost(OSError(number, "no"))
    with pytest.raises(HostSilent):
        await connection.first_bytes()
    assert errno.ECONNRESET not in host_liveness.UNREACHABLE


async def test_an_engine_that_reads_nothing_is_busy_but_its_host_is_reachable(world):
    """The engine's kernel acknowledges what fits; the remainder waits in the router."""
    server = socket.create_server(("127.0.0.1", 0))
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *server.getsockname())
    transport.write(b"x" * 20_000_000)
    for _ in range(10):
        await asyncio.sleep(0.05)
        assert not host_liveness.is_gone(transport)
    assert transport.get_write_buffer_size() > 0
    transport.abort()
    server.close()


async def test_connections_to_engines_check_whether_their_host_is_reachable(world):
    w = await world(None)
    await w.ask()
    (connection,) = demo(w, "demo-0").upstream.connections
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == host_liveness.IDLE_ASK_S
    assert not host_liveness.is_gone(connection._transport)
