"""A request's body, whole: it must be read before it can be classified."""

from router.errors import Refusal
from router.watch import Receive

MAX_BODY = 32 * 1024 * 1024


class ClientGone(Exception):
    pass


async def read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """Refusal when it is too large (said at once when its length tells), ClientGone when it does not come."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > MAX_BODY:
        raise _too_large()
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise _too_large()
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large() -> Refusal:
    return Refusal(413, "body_too_large", f"the body may have at most {MAX_BODY} bytes")
