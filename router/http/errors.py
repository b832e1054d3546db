"""Error responses of the router itself, in OpenAI's format, or Anthropic's on /v1/messages. `code` tells the client
what to do; docs/router.md lists all codes.
"""

import re
from urllib.parse import quote

import orjson

from router.contract.answer import verdict
from router.contract.answer.verdict import Result
from router.contract.net.retry_after import LONGEST_S, retry_after, seconds

_RETRY_AFTER = re.compile(rb"(?:^|\n)retry-after(-ms)?: *([^\r]*)")
_SHOULD_RETRY = re.compile(rb"(?<![^\n])x-should-retry:[^\n]*\n")
_OPENAI_TYPES = {429: "rate_limit_error", 503: "service_unavailable_error"}
_OPENAI_TYPES_BY_CODE = {"insufficient_quota": "insufficient_quota"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorResponse(Exception):
    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        allow: str | None = None,
        location: str | None = None,
        should_retry: bool = True,
        result: Result | None = None,
        engines: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        # Errors that clients should not retry have a retry-after only if the time is known
        self.retry_after_s = retry_after(status, retry_after_s) if should_retry or retry_after_s else None
        self.allow = allow  # allowed methods, for a 405
        self.location = location  # path, for a 307
        self.result = result or verdict.of_own_answer(status, code)
        self.engines = engines  # the engine's own body, passed on unchanged
        # False: the client is asked not to retry; OpenAI's and Anthropic's would because of the status
        self.should_retry = should_retry and (self.retry_after_s or 0) <= LONGEST_S

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if not self.should_retry:
            headers.append((b"x-should-retry", b"false"))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode()))
        if self.location is not None:
            headers.append((b"location", quote(self.location, safe="/?&=%:@!$'()*+,;~").encode()))
        return headers


def document(api_path: str, status: int, code: str, message: str, request_id: str) -> dict[str, object]:
    if api_path.startswith("/v1/messages"):
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {
            "type": "error",
            "error": {"type": kind, "message": message, "code": code},
            "request_id": request_id,
        }
    kind = _OPENAI_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    kind = _OPENAI_TYPES_BY_CODE.get(code, kind)
    return {"error": {"message": message, "type": kind, "param": None, "code": code, "request_id": request_id}}


def body(api_path: str, refusal: ErrorResponse, request_id: str) -> bytes:
    return orjson.dumps(document(api_path, refusal.status, refusal.code, refusal.message, request_id))


def answer(api_path: str, refusal: ErrorResponse, request_id: str) -> tuple[bytes, bytes]:
    """Return (header lines, body)."""
    text = refusal.engines or body(api_path, refusal, request_id)
    lines = b"".join(b"%b: %b\r\n" % header for header in refusal.headers())
    return b"%bcontent-length: %d\r\n" % (lines, len(text)), text


def saying_when(status: int, lines: bytes) -> bytes:
    """Add a missing retry-after to an engine's header lines; if the retry time is far away, ask clients not to
    retry."""
    named = _RETRY_AFTER.findall(lines)
    after = retry_after(status) if all(unit for unit, _ in named) else None
    if after is not None:
        lines = b"%bretry-after: %d\r\n" % (lines, after)
    is_far = any(seconds(value) > LONGEST_S * (1000 if unit else 1) for unit, value in named)
    return _SHOULD_RETRY.sub(b"", lines) + b"x-should-retry: false\r\n" if is_far else lines


def failed_response(code: str, message: str, request_id: str, model: str) -> bytes:
    """Return the only event of a /v1/responses stream when an engine refused the request."""
    error = {"code": code, "message": message}
    response = {"id": f"resp_{request_id}", "object": "response", "model": model, "status": "failed", "error": error}
    data = orjson.dumps({"type": "response.failed", "sequence_number": 0, "response": {**response, "output": []}})
    return b"event: response.failed\ndata: %b\n\n" % data


def event(api_path: str, code: str, message: str, request_id: str, number: int = 0) -> bytes:
    """Return the event that ends a broken stream, after a blank line: the stream may have stopped inside an event.
    `number` is the event's sequence number in a /v1/responses stream. OpenAI's clients raise only if the event has a
    field `error`; otherwise a truncated answer looks complete to them.
    """
    whole = document(api_path, 502, code, message, request_id)
    if api_path == "/v1/responses":
        flat = {"type": "error", "code": code, "message": message, "param": None, "request_id": request_id}
        data = orjson.dumps({**flat, "sequence_number": number, **whole})
        return b"\n\nevent: error\ndata: %b\n\n" % data
    data = orjson.dumps(whole)
    name = b"event: error\n" if api_path == "/v1/messages" else b""
    return b"\n\n%bdata: %b\n\n" % (name, data)
