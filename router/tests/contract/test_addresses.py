"""Addresses are public, private or services of the host according to IANA's registries, however they are written."""

from ipaddress import ip_address, ip_network

import pytest

from router.contract.net.addresses import ENGINES, Reach, literal, refusal

PUBLIC = Reach()
SERVICES = [
    *("169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"),
    *("fd00:ec2::254", "100.100.100.200", "192.0.0.192"),
    *("::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe"),
    *("2002:a9fe:a9fe::1", "2001:0:a9fe:a9fe::1", "2001:0:808:808:0:0:5601:5601", "::ffff:192.0.0.192"),
]
PRIVATE = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "240.0.0.1"),
    *("192.0.0.1", "192.0.0.8", "192.0.0.170", "192.0.2.1", "192.88.99.1", "198.51.100.1", "203.0.113.1"),
    *("::1", "fd00::1", "2001:db8::1", "2001:2::1", "2001:10::1", "3fff::1", "5f00::1", "100::1", "fec0::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:808:808::"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2",),
]
REACHABLE = [
    *("8.8.8.8", "192.0.0.9", "192.0.0.10", "192.31.196.1", "192.175.48.1", "172.32.0.1"),
    *("2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2001:1::1", "2001:20::1", "2620:4f:8000::1"),
]


@pytest.mark.parametrize("address", SERVICES)
def test_no_caller_may_reach_services_of_hosts_and_clouds(address):
    everything = Reach(networks=(ip_network("0.0.0.0/0"), ip_network("::/0")))
    for reach in (ENGINES, PUBLIC, everything):
        assert "services of the host or its cloud" in refusal(ip_address(address), reach)


@pytest.mark.parametrize("address", PRIVATE)
def test_other_special_addresses_are_for_engines_only(address):
    assert refusal(ip_address(address), PUBLIC) == f"{ip_address(address)} is not public"
    assert not refusal(ip_address(address), ENGINES)


@pytest.mark.parametrize("address", REACHABLE)
def test_public_addresses_are_allowed_for_every_caller(address):
    assert not refusal(ip_address(address), PUBLIC)


def test_an_allowed_network_can_be_reached_and_no_other():
    reach = Reach(networks=(ip_network("10.0.0.0/8"), ip_network("fd00::/8")), setting="WEIR_X")
    for address in ("10.9.9.9", "::ffff:10.9.9.9", "fd12::1"):
        assert not refusal(ip_address(address), reach)
    assert refusal(ip_address("192.168.1.1"), reach) == "192.168.1.1 is not public; WEIR_X may allow its network"


def test_the_zone_of_an_address_is_ignored():
    assert (literal("fe80::1%eth0"), literal("engine.example")) == (ip_address("fe80::1"), None)
