"""No request reaches an address of services of the host or its cloud, whatever name resolved to it."""

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack

import httpx
import pytest

from router.contract.net import addresses
from router.contract.net.addresses import ENGINES, Reach
from router.contract.net.outgoing import BeyondReach, connect, resolve
from router.contract.net.pinned_http import PER_POOL, PinnedTransport, _Pool
from router.contract.net.probe import ConnectionRefused, Prober
from router.kv_events.sources import NoEvents, discover
from router.tests.engine import engine, reply


@pytest.fixture
def local_is_a_cloud(monkeypatch):
    """Treat loopback as a cloud's metadata service."""
    monkeypatch.setattr(addresses, "is_own_service", lambda address: address.is_loopback)
    from router.contract.net import outgoing

    outgoing._refusal_of_literal.cache_clear()
    yield
    outgoing._refusal_of_literal.cache_clear()


@pytest.fixture
async def named(monkeypatch):
    """Return a function that sets the addresses to which `engine.invalid` resolves, one after the other."""

    def build(*answers):
        asked = []

        async def getaddrinfo(host, port, **_):
            asked.append(host)
            found = answers[len(asked) - 1]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        return asked

    return build


async def test_a_router_sends_nothing_to_a_forbidden_address(world, local_is_a_cloud):
    w = await world(None)
    answer = await w.ask()
    assert answer.status_code == 502
    assert "127.0.0.1 is an address of services of the host or its cloud" in answer.text
    assert not w.engines[0].received


async def test_a_probe_sends_nothing_to_a_forbidden_address(local_is_a_cloud):
    async with engine(reply()) as made:
        with pytest.raises(ConnectionRefused, match="is an address of services of the host or its cloud"):
            await Prober().get(made.url + "/metrics", 5)
        assert not made.received


async def test_an_httpx_client_sends_nothing_to_a_forbidden_address(local_is_a_cloud):
    async with engine(reply()) as made, httpx.AsyncClient(transport=PinnedTransport(ENGINES)) as client:
        with pytest.raises(httpx.ConnectError, match="is an address of services of the host or its cloud"):
            await client.get(made.url)
        assert not made.received


async def test_many_concurrent_requests_share_small_pools_and_return_their_connections():
    transport = PinnedTransport(ENGINES)
    async with engine(reply()) as made, httpx.AsyncClient(transport=transport) as client:
        async with AsyncExitStack() as answers:
            for _ in range(PER_POOL + 1):
                await answers.enter_async_context(client.stream("POST", made.url, json={}))
            assert [pool.under_way for pool in transport._pools] == [PER_POOL, 1]
        assert [pool.under_way for pool in transport._pools] == [0, 0]
        for _ in range(3):
            assert (await client.post(made.url, json={})).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1")
        assert [pool.under_way for pool in transport._pools] == [0, 0]


@pytest.mark.parametrize("ends", ["answered", "failed", "with the client"])
async def test_connections_of_an_earlier_certificate_are_closed_however_their_last_request_ends(monkeypatch, ends):
    closed = []

    async def close(pool):
        closed.append(pool)

    monkeypatch.setattr(_Pool, "aclose", close)
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def handle(pool, request):
        arrived.set()
        await go_on.wait()
        if ends == "failed":
            raise httpx.ReadError("reset")
        return httpx.Response(200, stream=httpx.ByteStream(b"fine"))

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    client = httpx.AsyncClient(transport=(transport := PinnedTransport(ENGINES)))
    asked = asyncio.create_task(client.get("http://127.0.0.1"))
    await arrived.wait()
    (earlier,) = transport._pools
    await transport.secure_by(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    assert not closed
    if ends == "with the client":
        await client.aclose()
        assert closed == [earlier]
    go_on.set()
    await asyncio.gather(asked, return_exceptions=True)
    assert earlier in closed
    assert not earlier.under_way
    assert transport._free_pool() is not earlier
    await client.aclose()


async def test_kv_events_of_a_forbidden_address_are_not_followed():
    async with engine(reply([{"publisher": "zmq", "endpoint": "tcp://169.254.169.254:80"}])) as made:
        with pytest.raises(NoEvents, match=r"169\.254\.169\.254 is an address of services"):
            await discover(made.url)


async def test_a_name_is_resolved_once_and_the_checked_address_is_used(named):
    asked = named(["127.0.0.1"], ["169.254.169.254"])
    async with engine(reply({"fine": True})) as made, httpx.AsyncClient(transport=PinnedTransport(ENGINES)) as client:
        answer = await client.get(f"http://engine.invalid:{made.port}/v1/models")
        assert (answer.json(), made.received[0].headers["host"]) == ({"fine": True}, f"engine.invalid:{made.port}")
    assert asked == ["engine.invalid"]


async def test_a_name_with_one_bad_address_among_good_ones_is_refused(named):
    named(["127.0.0.1", "169.254.169.254"])
    with pytest.raises(BeyondReach, match=r"169\.254\.169\.254"):
        await resolve("engine.invalid", 80, ENGINES)


async def test_the_next_address_is_tried_when_one_takes_no_connection(named):
    named(["127.0.0.2", "127.0.0.1"])
    async with engine(reply()) as made:
        transport, _ = await connect(asyncio.Protocol, "engine.invalid", made.port, ENGINES)
        assert transport.get_extra_info("peername") == ("127.0.0.1", made.port)
        transport.close()


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "xn--\udcff", "no-such-host.invalid"])
async def test_a_name_that_cannot_be_resolved_is_an_error_of_the_system(host):
    with pytest.raises(OSError, match=r"name|known"):
        await resolve(host, 80, ENGINES)


async def test_a_private_network_can_be_reached_if_it_is_allowed():
    with pytest.raises(BeyondReach, match=r"127\.0\.0\.1 is not public; WEIR_X may allow its network"):
        await resolve("127.0.0.1", 80, Reach(setting="WEIR_X"))
    assert await resolve("127.0.0.1", 80, ENGINES) == ["127.0.0.1"]
