"""Resources that this process or its host has used up do not count against an engine."""

import asyncio
import errno
import os
import resource
import socket

import pytest

from router.contract.net.exhaustion import is_exhausted
from router.contract.net.probe import ConnectionRefused, NotAsked, Prober
from router.flows import prefill
from router.tests.conftest import entry
from router.tests.http.test_own_errors import code_of
from router.upstream.errors import KeyMissing, RouterExhausted


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL])
def test_local_shortages_are_distinguished_from_failures_of_the_engine(number):
    assert is_exhausted(OSError(number, os.strerror(number)))


@pytest.mark.parametrize("number", [errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ETIMEDOUT, None])
def test_failures_of_the_other_side_do_not_count_as_shortages(number):
    assert not is_exhausted(OSError(number, "x") if number else OSError("x"))


def test_a_name_that_is_not_resolved_for_lack_of_a_file_descriptor_is_a_shortage():
    unknown = socket.gaierror(socket.EAI_AGAIN, "x")
    assert not is_exhausted(unknown)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert is_exhausted(unknown)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def no_connections(monkeypatch):
    """Return a function that prevents further connections."""

    def begin():
        async def create_connection(*args, **kwargs):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)

    yield begin
    monkeypatch.undo()


async def test_without_a_file_descriptor_the_client_gets_an_error_and_no_breaker_opens(
    world, no_connections, monkeypatch
):
    w = await world(None, None, failure__breaker_failures=1, failure__retries=2)
    client = w.client
    assert (await client.get("/healthz")).json()["status"] == "ok"
    no_connections()
    refused = await w.ask()
    monkeypatch.undo()
    assert (refused.status_code, code_of(refused)) == (503, "router_exhausted")
    assert refused.headers["retry-after"] == "1"
    endpoints = w.router.pools.get("demo").endpoints.values()
    assert [endpoint.breaker.state for endpoint in endpoints] == ["closed", "closed"]
    health = (await client.get("/healthz")).json()
    assert health["status"] == "degraded"
    assert "pool demo: the router could not open a connection" in health["degraded"][0]
    assert (await w.ask()).status_code == 200


async def test_idle_connections_are_closed_for_new_ones(world, no_connections, monkeypatch):
    w = await world(None, None)
    for _ in range(2):
        assert (await w.ask()).status_code == 200
    one, two = w.router.pools.get("demo").endpoints.values()
    assert (len(one.upstream.connections), len(two.upstream.connections)) == (1, 1)
    one.upstream.close_all_idle()
    await w.until(lambda: not one.upstream.connections)
    no_connections()
    await w.ask()  # the first is unreachable, the second's idle connection is closed or used
    monkeypatch.undo()
    await w.until(lambda: not [each for each in two.upstream.connections if not each.busy])
    assert (await w.ask()).status_code == 200


async def test_a_probe_that_could_not_be_sent_is_not_a_refusal(no_connections):
    no_connections()
    with pytest.raises(NotAsked, match="Too many open files"):
        await Prober().get("http://127.0.0.1:9/health", 1.0)


async def test_a_probe_to_a_closed_port_is_a_refusal():
    with pytest.raises(ConnectionRefused):
        await Prober().get("http://127.0.0.1:9/health", 1.0)


@pytest.mark.parametrize(
    ("error", "told"),
    [(RouterExhausted, (503, "router_exhausted", "router_failed")), (KeyMissing, (503, "saturated", "refused"))],
)
async def test_no_engine_is_blamed_for_a_prefill_that_the_router_could_not_send(world, monkeypatch, error, told):
    async def fails(*_):
        raise error("nothing was sent")

    w = await world(None, None, strategy="round_robin_pd", failure__breaker_failures=1)
    roles = ["prefill", "decode"]
    places = zip(w.engines, roles, strict=True)
    w.published.fleet(*(entry(f"a-{role}", one.url, role=role, connector="nixl") for one, role in places))
    endpoints = w.router.pools.get("demo").endpoints
    await w.until(lambda: [one.role for one in w.router.pools.get("demo").endpoints.values()] == roles)
    monkeypatch.setattr(prefill, "post", fails)
    response = await w.ask()
    receipt = await w.receipt(response)
    assert (response.status_code, response.json()["error"]["code"], receipt["result"]) == told
    assert receipt["fault"] != "engine"
    assert {one.breaker.failures for one in endpoints.values()} == {0}
