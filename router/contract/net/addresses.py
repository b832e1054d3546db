"""The addresses that Weir's processes may connect to, by IANA's registries of special-purpose addresses. Pure.

Python's `is_global` is not used, because its result for 192.0.0.0/24 and other blocks depends on the version.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# iana.org/assignments/iana-ipv4-special-registry and …/iana-ipv6-special-registry: (block, globally reachable). If
# several blocks contain an address, the smallest decides. Deprecated blocks without an entry are not reachable.
_REGISTRY = (
    *(("0.0.0.0/8", False), ("10.0.0.0/8", False), ("100.64.0.0/10", False), ("127.0.0.0/8", False)),
    *(("169.254.0.0/16", False), ("172.16.0.0/12", False), ("192.0.0.0/24", False), ("192.0.0.9/32", True)),
    *(("192.0.0.10/32", True), ("192.0.2.0/24", False), ("192.31.196.0/24", True), ("192.52.193.0/24", True)),
    *(("192.88.99.0/24", False), ("192.168.0.0/16", False), ("192.175.48.0/24", True), ("198.18.0.0/15", False)),
    *(("198.51.100.0/24", False), ("203.0.113.0/24", False), ("240.0.0.0/4", False), ("224.0.0.0/4", False)),
    *(("::/0", False), ("2000::/3", True), ("64:ff9b::/96", True), ("64:ff9b:1::/48", False), ("100::/64", False)),
    *(("100:0:0:1::/64", False), ("2001::/23", False), ("2001:1::1/128", True), ("2001:1::2/128", True)),
    *(("2001:1::3/128", True), ("2001:3::/32", True), ("2001:4:112::/48", True), ("2001:20::/28", True)),
    *(("2001:30::/28", True), ("2001:db8::/32", False), ("2002::/16", False), ("2620:4f:8000::/48", True)),
    *(("3fff::/20", False), ("5f00::/16", False), ("fc00::/7", False), ("fe80::/10", False), ("ff00::/8", False)),
)
_BLOCKS = sorted(((ip_network(block), reachable) for block, reachable in _REGISTRY), key=lambda row: -row[0].prefixlen)

# Metadata services of hosts and clouds, which hand out credentials: AWS, Alibaba Cloud, Oracle Cloud last.
_OWN_SERVICES = tuple(
    ip_network(block)
    for block in (
        *("169.254.0.0/16", "fe80::/10", "224.0.0.0/4", "ff00::/8", "0.0.0.0/8", "255.255.255.255/32", "::/128"),
        *("fd00:ec2::/32", "100.100.100.200/32", "192.0.0.192/32"),
    )
)
# IPv6 ranges that embed an IPv4 address: (block, number of bits after the address)
_EMBEDDED = (
    *((ip_network("::ffff:0:0/96"), 0), (ip_network("::/96"), 0)),  # mapped, compatible
    *((ip_network("64:ff9b::/96"), 0), (ip_network("64:ff9b:1::/96"), 0)),  # NAT64
    (ip_network("2002::/16"), 80),  # 6to4
    (ip_network("2001::/32"), 64),  # Teredo: the server
)


@dataclass(frozen=True, slots=True)
class Reach:
    """The addresses that one kind of caller may connect to; metadata services are always excluded."""

    private: bool = False  # True: any address except metadata services
    networks: Sequence[Network] = ()  # allowed in addition to public addresses
    setting: str = ""  # name of the setting that holds `networks`


ENGINES = Reach(private=True)  # applies also to etcd, bootstrap servers and routers beside engines


_BASE = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[\w.~-]{1,100}){0,8}/?", re.ASCII)


def is_base_path(path: str) -> bool:
    """Return whether the path is a valid base path: up to eight plain segments, and not the API's `/v1`."""
    return _BASE.fullmatch(path) is not None and not path.rstrip("/").endswith("/v1")


def refusal(address: Address, reach: Reach) -> str:
    """Return why the address is not allowed; empty if it is."""
    forms = list(_forms(address))
    if any(is_own_service(form) for form in forms):
        return f"{address} is an address of services of the host or its cloud"
    if reach.private or any(form in network for form in forms for network in reach.networks):
        return ""
    if all(is_public(form) for form in forms):
        return ""
    return f"{address} is not public{f'; {reach.setting} may allow its network' if reach.setting else ''}"


def is_public(address: Address) -> bool:
    """Judge this address only, not the addresses that it embeds. A mapped address's IPv4 form is judged separately."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return True
    return next((reachable for block, reachable in _BLOCKS if address in block), True)


def is_own_service(address: Address) -> bool:
    return any(address in block for block in _OWN_SERVICES)


def literal(host: str) -> Address | None:
    """Return the address in `host`, without its zone; None for a name."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


@lru_cache(maxsize=4_096)
def network_of(host: str) -> str:
    """Return the network that counts as one client: an IPv4 address (also one mapped into IPv6), or the /64 of an
    IPv6 address, since its owner has 2^64 addresses. A host without an address, such as a Unix socket, is returned
    unchanged."""
    found = literal(host)
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
    return host if found is None else str(found)


def _forms(address: Address) -> Iterator[Address]:
    """Yield the address, and every address that a gateway or the kernel would derive from it."""
    yield address
    if isinstance(address, IPv6Address):
        for block, behind in _EMBEDDED:
            if address in block and int(address) > 1:  # except :: and ::1
                yield IPv4Address(int(address) >> behind & 0xFFFF_FFFF)
        if address in _EMBEDDED[-1][0]:
            yield IPv4Address(~int(address) & 0xFFFF_FFFF)  # Teredo: the client
