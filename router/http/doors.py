"""Admits a request according to the table of paths (router/contract/api_paths.py), or refuses it with one clear
error."""

from router.contract.api_paths import SERVED, ApiPath, Handling, find
from router.http import errors
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.http.headers import request_id


def admitted(incoming: IncomingRequest) -> ApiPath:
    """Return the table row that admits the request's path and method. Raise ErrorResponse."""
    path, method = incoming.path, incoming.method
    row = find(path)
    if dict(incoming.headers).get(b"upgrade", b"").lower() == b"websocket":
        raise ErrorResponse(400, "no_websockets", "no WebSocket is served here: send requests as HTTP POSTs")
    if row is None:
        raise _unknown(incoming)
    if row.handling is Handling.REFUSED:
        raise not_served(path, row.why)
    if method not in row.methods:
        allow = ", ".join(row.methods)
        raise ErrorResponse(405, "method_not_allowed", f"{path[:200]} takes {allow}, not {method}", allow=allow)
    return row


def below(root: str, path: str) -> str:
    """Remove from the path the prefix under which a proxy serves this server, if the path has it."""
    rest = path.removeprefix(root)
    return rest if rest.startswith("/") else path


def refuse(incoming: IncomingRequest, refusal: ErrorResponse, client: ClientConnection) -> None:
    """Answer a request for a path that is not served."""
    name = request_id(dict(incoming.headers))
    lines, text = errors.answer(incoming.path, refusal, name)
    client.start(refusal.status, b"%bx-request-id: %b\r\n" % (lines, name.encode()))
    client.end(b"" if incoming.method == "HEAD" else text)


def not_served(path: str, why: str) -> ErrorResponse:
    return ErrorResponse(404, "not_served", f"{path[:200]} is not served here: {why}")


def _unknown(incoming: IncomingRequest) -> ErrorResponse:
    path = incoming.path
    bare = path.rstrip("/")
    row = find(bare) if bare != path else None
    if row is None or row.handling is Handling.REFUSED:
        return ErrorResponse(404, "not_found", f"there is no {path[:200]}; there are {', '.join(SERVED)}")
    # Relative, as only the client knows under which host and path it reached this server
    up = "../" * (len(path) - len(bare))
    location = up + bare.rpartition("/")[2] + (f"?{incoming.query.decode('latin-1')}" if incoming.query else "")
    return ErrorResponse(307, "moved", f"{path[:200]} is {bare[:200]} without the slash at its end", location=location)
