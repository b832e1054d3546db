"""Outgoing connections: a name is resolved once, each of its addresses is checked, and one of these is connected to.

A name that changed its address between check and connection would lead past any other check.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import TypeVar

from router.contract.net.addresses import Reach, literal, refusal
from router.contract.net.tls_refusal import TlsRefused, explained

Made = TypeVar("Made", bound=asyncio.BaseProtocol)


@cache
def tls() -> ssl.SSLContext:
    """Return the context of outgoing connections, which checks servers by the system's authorities or SSL_CERT_FILE's.

    Kept, since reading them all takes 30 ms: authorities added later need a restart.
    """
    return ssl.create_default_context()


class BeyondReach(PermissionError):
    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)


async def resolve(host: str, port: int, reach: Reach) -> list[str]:
    """Addresses to connect to, with their zones. OSError: there is none, or BeyondReach for any of them."""
    if literal(host) is not None:
        why = _refusal_of_literal(host, reach)
        found = [host]
    else:
        found, why = await _asked(host, port), ""
        for address in found:
            why = why or refusal(ip_address(address.partition("%")[0]), reach)
    if why:
        raise BeyondReach(why)
    return found


async def connect(
    factory: Callable[[], Made],
    host: str,
    port: int,
    reach: Reach,
    secure: ssl.SSLContext | None = None,
    name: str = "",
) -> tuple[asyncio.Transport, Made]:
    """OSError: no address of the host takes the connection, BeyondReach or TlsRefused. `name`: the one that the
    server's certificate must have instead of the host's."""
    name = name or host
    loop, failed = asyncio.get_running_loop(), OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    for address in await resolve(host, port, reach):
        try:
            return await loop.create_connection(
                factory, address, port, ssl=secure, server_hostname=name if secure else None
            )
        except ssl.SSLError as error:
            failed = TlsRefused(explained(error, name))
        except OSError as error:
            failed = error
    raise failed


async def _asked(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"{host[:100]!r} is not a host name: {error}") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@lru_cache(maxsize=4096)
def _refusal_of_literal(host: str, reach: Reach) -> str:
    return refusal(ip_address(host.partition("%")[0]), reach)
