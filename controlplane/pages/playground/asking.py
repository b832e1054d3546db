"""Asks a model through the fleet's routers and passes the answer on as it arrives, within limits of time, size and
number."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import structlog

from router.contract.net.addresses import ENGINES
from router.contract.net.pinned_http import PinnedTransport

log = structlog.get_logger(__name__)
PATH = "/v1/chat/completions"
CONNECT_S, ANSWER_S = 2.0, 300.0
LARGEST = 4 << 20  # largest answer as a stream, bytes
AT_ONCE, OF_ONE = 8, 2  # answers passed on by one web process: in total, and to one person
NEW_KEY_TRIES, NEW_KEY_S = 15, 0.2  # a router learns of a new key shortly after its creation
FULL = f"{AT_ONCE} answers, or {OF_ONE} of yours, are being written already: ask again when one has ended."
UNREACHABLE = "No router can be reached: Fleet says which of them run."
LATE = f"The answer was not complete after {ANSWER_S:g} s."
# Items: {"request": its id}, {"text": a piece}, {"thought": a piece}, {"usage": {name: tokens}}, or {"failed": a
# sentence}
Said = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuestion:
    model: str
    pool: str = ""  # empty if the router chooses it by the model
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    session: str

    def body(self) -> bytes:
        asked = {"model": self.model, "messages": list(self.messages), "max_tokens": self.max_tokens}
        return json.dumps(asked | {"stream": True, "stream_options": {"include_usage": True}}).encode()


class AnswerPlaces:
    def __init__(self) -> None:
        self.taken = Counter[str]()  # by person

    @contextmanager
    def one(self, person: str) -> Iterator[bool]:
        """Take a slot; yield whether one was free."""
        if self.taken.total() >= AT_ONCE or self.taken[person] >= OF_ONE:
            yield False
            return
        self.taken[person] += 1
        try:
            yield True
        finally:
            self.taken -= Counter((person,))


places = AnswerPlaces()


async def answer(question: ChatQuestion, secret: str, urls: Sequence[str]) -> AsyncIterator[Said]:
    """Yield the answer. `urls` are those of the routers. A failure is the last item and is never raised."""
    with places.one(secret) as free:
        if not free:
            yield {"failed": FULL}
            return
        try:
            async with asyncio.timeout(ANSWER_S), _client() as client:
                async for each in _answer(client, question, secret, urls):
                    yield each
        except TimeoutError:
            yield {"failed": LATE}
        except httpx.ConnectError:
            yield {"failed": UNREACHABLE}
        except httpx.HTTPError as error:
            log.info("playground.broken_off", error=str(error)[:200])
            yield {"failed": "The router broke the answer off."}


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=PinnedTransport(ENGINES), timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S))


async def _answer(
    client: httpx.AsyncClient, question: ChatQuestion, secret: str, urls: Sequence[str]
) -> AsyncIterator[Said]:
    response = await _sent(client, question, secret, urls)
    try:
        if request_id := response.headers.get("x-request-id"):
            yield {"request": request_id}
        if response.status_code != 200:
            yield {"failed": refusal(response.status_code, await _whole(response), response.headers.get("retry-after"))}
            return
        async for line in _lines(response):
            for each in said(line):
                yield each
    finally:
        await response.aclose()


async def _sent(client: httpx.AsyncClient, question: ChatQuestion, secret: str, urls: Sequence[str]) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    headers |= {"x-session-id": question.session} | ({"x-weir-pool": question.pool} if question.pool else {})
    for left in range(NEW_KEY_TRIES, 0, -1):
        response = await _reached(client, urls, content=question.body(), headers=headers)
        if response.status_code != 401 or left == 1:
            return response
        await response.aclose()
        await asyncio.sleep(NEW_KEY_S)
    raise httpx.ConnectError(UNREACHABLE)


async def _reached(client: httpx.AsyncClient, urls: Sequence[str], **given: Any) -> httpx.Response:
    """Return the first answer; if a router is unreachable, try the next one."""
    for url in urls:
        try:
            return await client.send(client.build_request("POST", url + PATH, **given), stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            log.info("playground.router_unreachable", router=url, error=str(error)[:200])
    raise httpx.ConnectError(UNREACHABLE)


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    rest, size = b"", 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > LARGEST:
            raise httpx.ReadError(f"its answer has more than {LARGEST:,} bytes")
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    yield rest


async def _whole(response: httpx.Response) -> bytes:
    return b"\n".join([line async for line in _lines(response)])


def said(line: bytes) -> Iterator[Said]:
    """Yield the items in one line of a stream of server-sent events; a line may have none."""
    try:
        event = json.loads(line.removeprefix(b"data:")) if line.startswith(b"data:") else None
    except (ValueError, RecursionError):
        return  # [DONE]
    if not isinstance(event, dict):
        return
    if event.get("error"):
        yield {"failed": _message(event) or "The engine broke the answer off."}
    for choice in _dicts(event.get("choices")):
        delta = choice.get("delta")
        for name, kind in (("reasoning_content", "thought"), ("reasoning", "thought"), ("content", "text")):
            if isinstance(delta, dict) and delta.get(name) and isinstance(delta[name], str):
                yield {kind: delta[name]}
    if isinstance(usage := event.get("usage"), dict):
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        yield {
            "usage": {"prompt": usage.get("prompt_tokens"), "cached": cached, "output": usage.get("completion_tokens")}
        }


def refusal(status: int, body: bytes, retry_after: str | None) -> str:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = {}
    reason = _message(parsed) if isinstance(parsed, dict) else ""
    later = f" Ask again in {retry_after} s." if retry_after and retry_after.isdecimal() else ""
    return f"Refused with {status}{f': {reason}' if reason else ''}.{later}".replace("..", ".")


def _message(parsed: Mapping[str, Any]) -> str:
    error = parsed.get("error")
    text = error.get("message") if isinstance(error, dict) else error
    return text[:500] if isinstance(text, str) else ""


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
