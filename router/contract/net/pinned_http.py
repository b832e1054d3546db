"""Transports for httpx on top of outgoing.py. Import this module only where it is used: httpx takes a quarter of the
router's import time."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from router.contract.net.addresses import ENGINES, Reach
from router.contract.net.engine_key import EngineKeyMissing, text
from router.contract.net.engine_tls import PLAIN, EngineTls, context
from router.contract.net.outgoing import resolve, tls
from router.contract.net.tls_refusal import HINT, TlsRefused, cause, explained
from router.contract.net.whereabouts import Missing

# httpcore scans all connections of its pool when a request begins and when it ends. A request takes 6.2 ms of CPU time
# with 128 connections in one pool and 1.2 ms in pools of 8 (httpcore 1.0.9).
PER_POOL = 8


class PinnedTransport(httpx.AsyncBaseTransport):
    """Connects to the checked address; `Host` header and certificate keep the name. Uses no proxy."""

    def __init__(
        self,
        reach: Reach,
        limits: httpx.Limits | None = None,
        secure: ssl.SSLContext | None = None,
        name: str = "",
    ) -> None:
        """Set up an empty transport. For `secure` and `name` see `connect` (router/contract/net/outgoing.py); `limits`
        apply to each pool."""
        self._secure, self._limits = secure or tls(), limits or httpx.Limits()
        self._reach = reach
        self._name = name
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url, host = request.url, request.url.host
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            address, *_ = await resolve(host, port, self._reach)
        except OSError as error:
            raise httpx.ConnectError(error.strerror or str(error), request=request) from error
        request.url = url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": self._name or host}
        return await self._free_pool().handle_async_request(request)

    def _free_pool(self) -> "_Pool":
        for pool in self._pools:
            if pool.under_way < PER_POOL and not pool.is_over:
                return pool
        self._pools.append(_Pool(verify=self._secure, trust_env=False, limits=self._limits))
        return self._pools[-1]

    async def secure_by(self, secure: ssl.SSLContext) -> None:
        """Use this TLS context from now on; connections with an earlier context close after their current answers."""
        if secure is not self._secure:
            self._secure = secure
            for pool in self._pools:
                pool.is_over = True
            self._pools, over = [pool for pool in self._pools if pool.under_way], self._pools
            for pool in over:
                await pool.close_if_over()

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


class _Pool(httpx.AsyncHTTPTransport):
    under_way = 0
    is_over = False

    async def close_if_over(self) -> None:
        if self.is_over and not self.under_way:
            await self.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.under_way += 1
        try:
            response = await super().handle_async_request(request)
        except BaseException:
            self.under_way -= 1
            await self.close_if_over()
            raise
        response.stream = _PooledAnswer(response.stream, self)
        return response


class _PooledAnswer(httpx.AsyncByteStream):
    """An answer that counts as in progress in its pool until it is closed."""

    def __init__(self, stream: Any, pool: _Pool) -> None:
        self._stream, self._pool = stream, pool
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        self._pool.under_way -= self._is_open
        self._is_open = False
        await self._stream.aclose()
        await self._pool.close_if_over()


class EngineTransport(PinnedTransport):
    """A transport to one engine. It adds the engine's key only to requests to that engine's address."""

    def __init__(self, url: str, key: str, limits: httpx.Limits | None = None, certificates: EngineTls = PLAIN) -> None:
        """`key` is a reference (router/contract/net/engine_key.py); empty if the engine requires none."""
        super().__init__(ENGINES, limits, None, certificates.name)
        self._certificates = certificates
        self._origin = _origin(httpx.URL(url))
        self._key = key

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            await self.secure_by(context(self._certificates))
        except (Missing, TlsRefused) as error:
            raise httpx.ConnectError(error.strerror or str(error), request=request) from None
        if self._key and _origin(request.url) == self._origin:
            try:
                request.headers["authorization"] = f"Bearer {text(self._key)}"
            except EngineKeyMissing as error:
                raise httpx.ConnectError(str(error), request=request) from None
        host = self._name or request.url.host
        try:
            return await super().handle_async_request(request)
        except httpx.TransportError as error:
            if (of_tls := cause(error)) is not None:
                raise type(error)(explained(of_tls, host), request=request) from None
            if request.url.scheme == "https" and isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
                raise type(error)(f"{str(error) or 'the connection broke'}{HINT}", request=request) from None
            raise


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


@dataclass(frozen=True, slots=True)
class PinnedAnswer:
    status: int
    content_type: str
    body: bytes


async def ask(method: str, url: str, reach: Reach, timeout_s: float, most: int, **request: Any) -> PinnedAnswer:
    """Return the whole answer to one request, whatever its status. `headers`, `data` and other arguments are those of
    httpx. Redirects are not followed. Raise TimeoutError or httpx.HTTPError, the latter also if the answer exceeds
    `most` bytes."""
    answer = await ask_through(PinnedTransport(reach), method, url, timeout_s, most, **request)
    if len(answer.body) > most:
        raise httpx.ReadError(f"its answer has more than {most:,} bytes")
    return answer


async def ask_through(
    transport: PinnedTransport, method: str, url: str, timeout_s: float, most: int, **request: Any
) -> PinnedAnswer:
    """Return the answer like `ask`, but cut an answer longer than `most` bytes shortly beyond that limit. The time
    limit covers the whole body, even if it arrives byte by byte. The transport is closed afterwards."""
    async with (
        asyncio.timeout(timeout_s),
        httpx.AsyncClient(transport=transport, timeout=timeout_s) as client,
        client.stream(method, url, **request) as answer,
    ):
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > most:
                break
        return PinnedAnswer(answer.status_code, answer.headers.get("content-type", ""), body)
