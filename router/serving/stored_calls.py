"""Passes GET, DELETE, cancel and input_items of a stored response on to the instance that stores it."""

import asyncio
import time

from router.contract.net import engine_key
from router.contract.redis.published import StoredResponse
from router.http import body, doors, headers
from router.http.body import ClientGone
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.pool.endpoint import Endpoint
from router.request import fault
from router.serving.answer.kv_location import LocationFilter
from router.serving.answer.renaming import Rename
from router.serving.answer.response_id import SANE
from router.serving.passing import ByteChange, pass_on, request_bytes
from router.serving.pools import Pools
from router.serving.stored import PATH, StoredResponses
from router.upstream.connection import Connection
from router.upstream.errors import FirstByteTimeout, UpstreamError
from router.upstream.keyed import with_key
from router.upstream.stalls import Stalls

CONNECT_S, FIRST_BYTE_S, SILENT_S = 2.0, 60.0, 120.0
LARGEST = 64 * 1024  # bytes of an answer that reports an unserved method


class StoredCalls:
    def __init__(self, pools: Pools, responses: StoredResponses, stalls: Stalls) -> None:
        self._pools = pools
        self._responses = responses
        self._stalls = stalls

    async def handle(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        """Handle the call. Raise ErrorResponse before the answer has begun."""
        own = dict(incoming.headers)
        key = self._pools.auth.identify(incoming, own, time.time())
        self._pools.require_key(key, own)
        response_id = incoming.path.removeprefix(f"{PATH}/").partition("/")[0]
        owner = await self._responses.owner(key, response_id) if SANE.fullmatch(response_id) else None
        if owner is None:
            raise _not_found(response_id, "nobody made it here with this API key, or it was too long ago")
        if (refusal := self._pools.barred(key, owner.pool)) is not None:
            raise refusal
        endpoints = self._responses.endpoints(owner)
        if not endpoints:
            raise _not_found(response_id, f"{self._responses.why_gone(owner)}: ask for it again with its whole input")
        name, own_id = headers.request_ids(own)
        try:
            sent = await body.read(own, client)
            connection = await self._asked(incoming, endpoints[0], own_id, sent, is_known=key is not None)
        except ClientGone:
            return
        except UpstreamError as error:
            message = f"{owner.instance}, which stored the response, does not answer: {error}: retry in 5 s"
            raise ErrorResponse(error.status, error.code, message, retry_after_s=5) from None
        if incoming.method == "DELETE" and connection.status < 300:
            await self._responses.forget(key, response_id)
        await pass_on(connection, client, name, (self._stalls, SILENT_S), _changes(owner, endpoints[0]))

    async def _asked(
        self, incoming: IncomingRequest, endpoint: Endpoint, own_id: str, sent: bytes, *, is_known: bool
    ) -> Connection:
        """Send the call to the instance. `is_known` is True if the client sent a key known to Weir."""
        lines = with_key(headers.forwarded(incoming.headers, dict(incoming.headers)), endpoint.engine_key)
        request = request_bytes(incoming, endpoint.upstream, lines + headers.id_line(own_id), sent)
        connection = await endpoint.upstream.open(
            request, connect_timeout_s=CONNECT_S, first_byte_timeout_s=FIRST_BYTE_S
        )
        if engine_key.is_engines(connection.status, endpoint.engine_key, sent=lines, known=is_known):
            connection.release()
            message = f"{endpoint.instance} {fault.words(endpoint, connection.status)}"
            raise ErrorResponse(502, "upstream_failed", message, result="failed_before_content")
        if connection.status in (404, 405) and b'"error"' not in await self._whole(connection):
            connection.release()
            raise doors.not_served(incoming.path, f"{endpoint.instance} does not answer {incoming.method} here")
        return connection

    async def _whole(self, connection: Connection) -> bytes:
        """Return the beginning of the answer. Raise UpstreamError, and close the connection, if it does not arrive in
        time."""
        try:
            async with asyncio.timeout(FIRST_BYTE_S):
                return await connection.peek_whole(LARGEST)
        except BaseException as error:
            connection.abort()
            if isinstance(error, TimeoutError):
                raise FirstByteTimeout(f"no whole answer within {FIRST_BYTE_S:g} s") from None
            raise


def _changes(owner: StoredResponse, endpoint: Endpoint) -> list[ByteChange]:
    """Return the filters that change a stored response in the same way as the answer that created it."""
    changes: list[ByteChange] = [LocationFilter()] if endpoint.connector else []
    return [Rename(owner.model, owner.model), *changes] if owner.model else changes


def _not_found(response_id: str, why: str) -> ErrorResponse:
    return ErrorResponse(404, "response_not_found", f"there is no response {response_id[:100]!r}: {why}")
