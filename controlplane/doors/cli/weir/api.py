"""The REST API of a control plane: single calls, repeated while it does not answer."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any

from . import VERSION

PASS, FAIL, INCONCLUSIVE, ERROR = 0, 1, 2, 3  # exit statuses
ANSWER_S = 60.0  # longest wait for one answer
AWAY_S = 120.0  # time for which a call is repeated while the control plane does not answer


class Failed(Exception):
    """A failed call; the message is for people."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status  # status of the answer; 0: there was none
        super().__init__(message)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the token to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Api:
    """The REST API of one control plane."""

    def __init__(self, url: str, token: str) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise Failed(f"WEIR_URL is {url!r}: it must begin with http:// or https://")
        if not token:
            raise Failed("WEIR_TOKEN is empty: make an API token on the page Tokens")
        self._url, self._token = url.rstrip("/"), token
        self._open = urllib.request.build_opener(_NoRedirect).open

    def get(self, path: str) -> Any:
        return self.call("GET", path)[0]

    def text(self, path: str, accept: str = "") -> bytes:
        return self._tried("GET", path, None, {"Accept": accept} if accept else {})[0]

    def call(self, method: str, path: str, body: Any = None, etag: str = "") -> tuple[Any, str]:
        """Return (value of the answer, its ETag). A call that changes something carries an idempotency key, so it
        takes effect once."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if method == "POST":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        if etag:
            headers["If-Match"] = etag
        data = json.dumps(body).encode() if body is not None else None
        raw, found = self._tried(method, path, data, headers)
        return (json.loads(raw) if raw else None), found

    def put(self, path: str, data: bytes, content_type: str) -> Any:
        raw, _ = self._tried("PUT", path, data, {"Content-Type": content_type})
        return json.loads(raw)

    def _tried(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[bytes, str]:
        """Repeat the request while the control plane is unreachable."""
        end, pause = time.monotonic() + AWAY_S, 0.5
        while True:
            try:
                return self._asked(method, path, data, headers)
            except Failed as failed:
                if failed.status not in (0, 429, 502, 503, 504) or time.monotonic() + pause > end:
                    raise
                print(f"weir: {failed}; trying again in {pause:g} s", file=sys.stderr)
            time.sleep(pause)
            pause = min(2 * pause, 10.0)

    def _asked(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[bytes, str]:
        own = {"Authorization": f"Bearer {self._token}", "User-Agent": f"weir/{VERSION}", "Accept": "application/json"}
        request = urllib.request.Request(  # noqa: S310 - http or https: __init__
            f"{self._url}/api/v1{path}", data, {**own, **headers}, method=method
        )
        try:
            with self._open(request, timeout=ANSWER_S) as answer:
                return answer.read(), answer.headers.get("ETag", "")
        except urllib.error.HTTPError as error:
            raise Failed(_problem(method, path, error.code, error.read()), error.code) from None
        except (OSError, ValueError) as error:
            raise Failed(f"{self._url} does not answer: {getattr(error, 'reason', error)}") from None


def _problem(method: str, path: str, status: int, raw: bytes) -> str:
    """Return the problem as text: RFC 9457, with a line for each field."""
    try:
        problem = json.loads(raw)
        lines = [f"{status} {problem['title']}" + (f": {problem['detail']}" if problem.get("detail") else "")]
    except (ValueError, KeyError, TypeError):
        return f"{method} {path}: {status}, which is no answer of Weir's API"
    lines += [f"  {one['path'] or '(all)'}: {short(one.get('value'))}: {one['message']}" for one in problem["errors"]]
    lines += [
        f"  {one['path']}: {short(one.get('base'))}, now {short(one.get('theirs'))}, here {short(one.get('mine'))}"
        for one in problem.get("conflicts", [])
    ]
    return "\n".join(lines)


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:79] + "…"


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
