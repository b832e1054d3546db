"""Sends one notice to a webhook: signed, without redirects, with limits on size and time."""

import json
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx

from controlplane.people.notices.errors import Unsendable
from controlplane.people.notices.senders import signing
from controlplane.people.notices.senders.addresses import reach
from router.contract.net.addresses import literal, refusal
from router.contract.net.pinned_http import PinnedTransport
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, invalid

ANSWER_MAX = 64_000  # bytes read from an answer, whose content is not used
AGENT = "weir"
TIMEOUT_S = 10  # limit for each read and write
URL_MAX = 2_000


def check(url: str) -> None:
    """Check a URL. Raise InvalidInput, which does not repeat the URL, as it may hold a token."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _invalid("is not a URL") from None
    if len(url) > URL_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise _invalid(f"must be printable ASCII without spaces, at most {URL_MAX:,} characters")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _invalid("must begin with https:// or http:// and a host")
    if parts.username is not None or parts.fragment:
        raise _invalid("must have neither a user name nor a fragment")
    address = literal(parts.hostname)
    why = refusal(address, reach()) if address is not None else ""
    if why:
        raise _invalid(f"is out of reach: {why}")


def _invalid(message: str) -> InvalidInput:
    return invalid("url", None, message, "https://HOST/PATH")


def body_of(sequence: int, event: str, subject: str, text: str, facts: JsonObject, at: str) -> bytes:
    """Return the body. `sequence` grows with each notice; `at` is the time of the event in ISO 8601."""
    data = {"subject": subject, "text": text, "facts": facts}
    return json.dumps({"type": event, "timestamp": at, "sequence": sequence, "data": data}, ensure_ascii=False).encode()


def client() -> httpx.AsyncClient:
    """Return a client for one receiver. Its connection is kept from notice to notice, as creating one takes 40 ms of
    CPU time."""
    return httpx.AsyncClient(transport=PinnedTransport(reach()), timeout=TIMEOUT_S)


async def post(client: httpx.AsyncClient, url: str, message_id: str, body: bytes, keys: Sequence[str], now: int) -> str:
    """Post a notice and return the outcome. Raise Unsendable. The caller limits the time."""
    headers = {
        "user-agent": AGENT,
        "content-type": "application/json",
        "accept-encoding": "identity",
        **signing.headers(message_id, now, body, keys),
    }
    request = httpx.Request("POST", url, headers=headers, content=body)
    try:
        return _outcome(await _status(client, request))
    except httpx.HTTPError as error:
        raise Unsendable(f"{type(error).__name__}: {_plain(error, url)}") from None


async def _status(client: httpx.AsyncClient, request: httpx.Request) -> int:
    answer = await client.send(request, stream=True)
    try:
        size = 0
        async for part in answer.aiter_raw():
            size += len(part)
            if size > ANSWER_MAX:
                break
    finally:
        await answer.aclose()
    return answer.status_code


def _outcome(status: int) -> str:
    if 200 <= status < 300:
        return f"{status}"
    if 300 <= status < 400:
        raise Unsendable(f"the receiver answered {status}: redirects are not followed, give the final address")
    raise Unsendable(f"the receiver answered {status}")


def _plain(error: httpx.HTTPError, url: str) -> str:
    return (str(error) or "the connection failed").replace(url, "the receiver")
