"""Sends one notice to a webhook: signed, without redirects, within bounds of size and time."""

import json
from collections.abc import Sequence

import httpx

from controlplane.people.notices.errors import Unsendable
from controlplane.people.notices.senders import signing
from controlplane.people.notices.senders.addresses import reach
from router.contract.json_value import JsonObject
from router.contract.net.pinned_http import PinnedTransport

ANSWER_MAX = 64_000  # bytes read of an answer, whose content is not used
AGENT = "weir"
TIMEOUT_S = 10  # limit for each read and write


def body_of(sequence: int, event: str, subject: str, text: str, facts: JsonObject, at: str) -> bytes:
    """Return the body. `sequence` grows with each notice; `at`: ISO 8601, of the event."""
    data = {"subject": subject, "text": text, "facts": facts}
    return json.dumps({"type": event, "timestamp": at, "sequence": sequence, "data": data}, ensure_ascii=False).encode()


def client() -> httpx.AsyncClient:
    """Return a client for one receiver: its connection is kept from notice to notice. Making one takes 40 ms of CPU."""
    return httpx.AsyncClient(transport=PinnedTransport(reach()), timeout=TIMEOUT_S)


async def post(client: httpx.AsyncClient, url: str, message_id: str, body: bytes, keys: Sequence[str], now: int) -> str:
    """Post a notice and return the outcome. Raises Unsendable. The caller bounds the time."""
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
