"""Reads a request's whole body, which classification needs. The connection bounds its time (request_limits.py)."""

import asyncio
import zlib

from router.http.client import ClientConnection
from router.http.errors import ErrorResponse

MAX_BODY = 32 * 1024 * 1024  # bytes, before or after decompression
LONG = len(str(MAX_BODY))
MAX_RATIO = 100  # plain bytes per compressed byte; text reaches 10, repeated text 30
ANY_RATIO = 1024 * 1024  # decompressed bytes at which the ratio is not checked
AT_ONCE = 16 * 1024  # bytes; longer bodies are decompressed in a thread
_WINDOWS = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class ClientGone(Exception):
    pass


async def read(headers: dict[bytes, bytes], client: ClientConnection) -> bytes:
    """Return the whole body. Raise ErrorResponse if it is too large (at once if content-length says so), and ClientGone
    if the client leaves."""
    length = headers.get(b"content-length", b"")
    if len(length) >= LONG and length.isdigit() and int(length) > MAX_BODY:
        raise too_large()
    body = await client.read()
    return await _decoded(body, headers[b"content-encoding"]) if b"content-encoding" in headers else body


async def _decoded(body: bytes, encoding: bytes) -> bytes:
    """Return the decompressed body, since not all engines can decompress."""
    named = encoding.strip().lower()
    if named in (b"", b"identity"):
        return body
    if named not in _WINDOWS:
        sent = encoding.decode("latin-1")[:100]
        message = f"content-encoding: {sent!r} is not read here; send the body as it is, or as gzip"
        raise ErrorResponse(415, "unsupported_encoding", message)
    if len(body) <= AT_ONCE:
        return decompressed(body, _WINDOWS[named])
    return await asyncio.to_thread(decompressed, body, _WINDOWS[named])


def decompressed(body: bytes, window: int) -> bytes:
    """Decompress, and stop before the output exceeds the limits."""
    unpacker = zlib.decompressobj(window)
    most = min(MAX_BODY, max(ANY_RATIO, MAX_RATIO * len(body)))
    try:
        plain = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise ErrorResponse(
            400, "invalid_encoding", f"the body is not what its content-encoding says: {error}"
        ) from None
    if len(plain) > MAX_BODY:
        raise too_large()
    if len(plain) > most:
        message = f"the body inflates to more than {MAX_RATIO} times its size: send it less compressed, or plain"
        raise ErrorResponse(413, "body_too_large", message)
    if not unpacker.eof or unpacker.unused_data:
        where = "ends too early" if not unpacker.eof else "has bytes after its end"
        raise ErrorResponse(400, "invalid_encoding", f"the compressed body {where}")
    return plain


def too_many() -> ErrorResponse:
    message = "this router holds as many bytes of requests as it may, in all or of one client: retry in 1 s"
    return ErrorResponse(503, "too_many_bodies", message, retry_after_s=1)


def too_large() -> ErrorResponse:
    return ErrorResponse(413, "body_too_large", f"the body may have at most {MAX_BODY} bytes")
