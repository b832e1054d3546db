"""A streamed completion with the time of each token.

RequestFailed
├── NotAnswered     no response, or an error
└── NotStreamed     the response was not streamed
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from router.contract.answer import answers
from router.contract.answer.said import Said

PLAIN = {"accept-encoding": "identity"}  # no compression, because a few compressed bytes may hold a gigabyte
LONGEST_EVENT = 1024 * 1024  # bytes
LARGEST = 1_000_000_000  # tokens


class RequestFailed(Exception):
    pass


class NotAnswered(RequestFailed):
    pass


class NotStreamed(RequestFailed):
    pass


@dataclass(frozen=True, slots=True)
class TokenTimes:
    sent_at: float  # seconds, monotonic clock
    prompt_tokens: int
    marks: tuple[tuple[float, int], ...]  # (seconds of that clock, tokens received so far)

    @property
    def ttft_s(self) -> float:
        return self.marks[0][0] - self.sent_at


async def stream_completion(client: httpx.AsyncClient, model: str, prompt: str, output_tokens: int) -> TokenTimes:
    """Stream an answer of exactly `output_tokens`. Raise RequestFailed."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    sent_at = time.monotonic()
    try:
        async with client.stream("POST", "/v1/completions", json=body, headers=PLAIN) as answer:
            await _check(answer)
            return await _read(answer, sent_at)
    except httpx.HTTPError as error:
        raise not_answered(client, error) from None


def not_answered(client: httpx.AsyncClient, error: httpx.HTTPError) -> NotAnswered:
    return NotAnswered(f"{client.base_url} does not answer: {str(error) or type(error).__name__}")


async def _check(answer: httpx.Response) -> None:
    if answer.status_code != 200:
        text = (await anext(answer.aiter_raw(200), b"")).decode(errors="replace")
        raise NotAnswered(f"POST /v1/completions answers {answer.status_code}: {text[:200]}")
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        raise NotStreamed("the engine does not stream: its response is not text/event-stream")


async def _read(answer: httpx.Response, sent_at: float) -> TokenTimes:
    prompt, tokens, is_over = 0, 0, False
    marks: list[tuple[float, int]] = []
    async for at, data in _events(answer):
        if data == b"[DONE]":
            is_over = True
            continue
        event = _parsed(data)
        if event.usage:
            prompt = _count(event.usage, "prompt_tokens")
        if event.choices:
            is_over = is_over or any(choice.finish_reason for choice in event.choices)
            # From the first content on, each chunk counts as a token unless it states a count.
            counted = _count(event.usage, "completion_tokens") if event.usage else None
            if marks or counted or (counted is None and answers.sign_of(event) == "content"):
                tokens = tokens + 1 if counted is None else counted
                marks.append((at, tokens))
    return _whole(TokenTimes(sent_at, prompt, tuple(marks)), is_over)


def _whole(times: TokenTimes, is_over: bool) -> TokenTimes:
    if not times.marks or not times.prompt_tokens:
        raise NotStreamed("the engine's stream has no tokens, or no usage at its end")
    if not is_over:
        tokens = times.marks[-1][1]
        raise NotAnswered(f"the stream was cut after {tokens:,} tokens: it has neither a finish_reason nor [DONE]")
    return times


def _count(usage: object, key: str) -> int:
    value = usage.get(key) if isinstance(usage, dict) else None
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise NotStreamed(f"usage.{key} is {str(value)[:40]}; allowed: 0 to {LARGEST}")
    return value


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[float, bytes]]:
    """Yield the data of each event with the arrival time of its bytes."""
    rest = b""
    async for piece in answer.aiter_raw():
        at = time.monotonic()
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(rest) > LONGEST_EVENT:
            raise NotStreamed(f"an event of the stream is longer than {LONGEST_EVENT} bytes")
        for data in map(answers.payload, whole):
            if data:
                yield at, data


def _parsed(data: bytes) -> Said:
    event = answers.said(data)
    if event is None:
        message = f"an event of the stream is no JSON object: {data[:100].decode(errors='replace')}"
        raise NotStreamed(message)
    if (error := answers.error_of(event)) is not None:
        raise NotAnswered(f"the stream failed: {error.message[:200]}")
    return event
