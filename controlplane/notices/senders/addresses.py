"""Which addresses a notice may be sent to: public ones, and the networks of WEIR_NOTICE_NETWORKS."""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from controlplane.notices.errors import Unsendable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
NAT64 = ip_network("64:ff9b::/96")  # holds an IPv4 address, which may be private
SETTING = "WEIR_NOTICE_NETWORKS"


def may_reach(address: Address, allowed: Iterable[Network]) -> bool:
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return may_reach(inner, allowed)
    if any(address in network for network in allowed):
        return True
    translated = address.version == 6 and (address in NAT64 or address.teredo is not None)
    return address.is_global and not address.is_multicast and not translated


def literal(host: str) -> Address | None:
    """The address that `host` spells; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> str:
    """The address to connect to. The caller connects to this one, so a name cannot change its address in between."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unsendable(f"the host name cannot be resolved: {error}") from None
    addresses = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        if not may_reach(address, allowed):
            raise Unsendable(f"the host resolves to {address}, which is not public; {SETTING} may allow its network")
    return str(addresses[0])
