"""Addresses at which hosts and clouds offer services to themselves, among them credentials: no engine lives there."""

import asyncio
import errno
import ipaddress

CLOUDS = ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")  # of AWS, Alibaba Cloud and Oracle Cloud


def is_own_service(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Private addresses are none: engines live there."""
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified or str(mapped) in CLOUDS


def check_peer(transport: asyncio.BaseTransport) -> None:
    """Close a connection that a name has led to such an address. Raises PermissionError."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):  # a Unix socket
        return
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if is_own_service(address):
        transport.close()
        raise PermissionError(errno.EACCES, f"{address} is an address of services of the host or its cloud")
