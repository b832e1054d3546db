"""Outgoing connections: a name is resolved once, all its addresses are checked, and the connection goes to one of them.
If the name were resolved again, its address could change between check and connection.
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
    """Return the TLS context of outgoing connections, which verifies servers by the system's authorities or those in
    SSL_CERT_FILE. Loading all authorities takes 30 ms, so the context is cached; authorities added later take effect
    after a restart.
    """
    return ssl.create_default_context()


class BeyondReach(PermissionError):
    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)


async def resolve(host: str, port: int, reach: Reach) -> list[str]:
    """Return the addresses to connect to, with their zones. Raise OSError if there is none, and BeyondReach if any of
    them is not allowed."""
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
    """Connect to the host. Raise OSError if no address accepts the connection, BeyondReach or TlsRefused. The server's
    certificate must be for `name`, or for the host if that is empty."""
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
