"""No request reaches an address at which a host or its cloud keeps its own services, whatever name led there."""

from ipaddress import ip_address

import pytest

from router.contract import own_services
from router.contract.probe import ConnectionRefused, Prober
from router.tests.engine import engine, reply


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "fd00:ec2::254", "0.0.0.0"]
)
def test_addresses_of_own_services(address):
    assert own_services.is_own_service(ip_address(address))


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "fd12::7", "::1", "93.184.215.14"])
def test_addresses_where_engines_live(address):
    assert not own_services.is_own_service(ip_address(address))


@pytest.fixture
def local_is_a_cloud(monkeypatch):
    """As though names led to the metadata service."""
    monkeypatch.setattr(own_services, "is_own_service", lambda address: address.is_loopback)


async def test_a_router_sends_nothing_there(world, local_is_a_cloud):
    w = await world(None)
    answer = await w.ask()
    assert answer.status_code == 502
    assert "127.0.0.1 is an address of services of the host or its cloud" in answer.text
    assert not w.engines[0].received


async def test_a_probe_asks_nothing_there(local_is_a_cloud):
    async with engine(reply()) as made:
        with pytest.raises(ConnectionRefused, match="is an address of services of the host or its cloud"):
            await Prober().get(made.url + "/metrics", 5)
        assert not made.received
