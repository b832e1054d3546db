"""Notices reach public addresses only, unless a network is allowed."""

import asyncio
from ipaddress import ip_address, ip_network

import pytest

from controlplane.notices.errors import Unsendable
from controlplane.notices.senders import addresses


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "255.255.255.255", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("2002:7f00:1::", "64:ff9b::a9fe:a9fe", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
    ],
)
def test_other_than_public_addresses_are_out_of_reach(address: str) -> None:
    assert not addresses.may_reach(ip_address(address), [])


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are_in_reach(address: str) -> None:
    assert addresses.may_reach(ip_address(address), [])


def test_an_allowed_network_is_in_reach_and_no_other() -> None:
    allowed = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]
    assert addresses.may_reach(ip_address("10.9.9.9"), allowed)
    assert addresses.may_reach(ip_address("::ffff:10.9.9.9"), allowed)
    assert addresses.may_reach(ip_address("fd12::1"), allowed)
    assert not addresses.may_reach(ip_address("192.168.1.1"), allowed)


def test_a_name_with_one_private_address_is_refused() -> None:
    with pytest.raises(Unsendable, match=r"127\.0\.0\.1|::1.*WEIR_NOTICE_NETWORKS"):
        asyncio.run(addresses.resolve("localhost", 80, []))


def test_an_unknown_name_is_named_as_such() -> None:
    with pytest.raises(Unsendable, match="cannot be resolved"):
        asyncio.run(addresses.resolve("no-such-host.invalid", 80, []))


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "xn--\udcff"])
def test_a_name_that_cannot_be_asked_for_is_refused(host: str) -> None:
    with pytest.raises(Unsendable):
        asyncio.run(addresses.resolve(host, 80, []))
