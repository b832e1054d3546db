"""Streamed completions of the OpenAI API: the request body, and the outcome from the end of the response."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from msgspec import UNSET, Struct

from controlplane.experiments.replay.client import ReplayAnswer

PATH = "/v1/completions"
REFUSED = frozenset({429, 503})  # no capacity, or no instance ready


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome of a request. Token counts are None when the response has none."""

    outcome: str  # "ok", "error" or "refused"
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    cached_from: tuple[int, int, int, int] | None = None  # device, host memory, disk, elsewhere


class CachedTiers(Struct, frozen=True):
    """Tiers with SGLang's names."""

    device: int | None = None
    host: int | None = None
    storage: int | None = None


class CompletionPromptDetails(Struct, frozen=True):
    cached_tokens: int | None = None
    cached_tokens_details: CachedTiers | None = None


class CompletionUsage(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CompletionPromptDetails | None = None


class CompletionEvent(Struct, frozen=True):
    """An event of a stream."""

    usage: CompletionUsage | None = None
    error: Any = UNSET


def body_of(model: str, prompt: str, max_tokens: int) -> bytes:
    """A body that requests exactly `max_tokens` tokens, streamed, with usage at the end."""
    return orjson.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def ending_of(answer: ReplayAnswer) -> Ending:
    """The outcome from the status and the last events."""
    if answer.status != 200:
        outcome = "refused" if answer.status in REFUSED else "error"
        return Ending(outcome, error=f"{answer.status} {error_text(bytes(answer.tail))}".strip())
    usage: CompletionUsage | None = None
    for event in _last_events(bytes(answer.tail)):
        if (error := event.error) is not UNSET:
            message = error.get("message", error) if isinstance(error, dict) else error
            return Ending("error", error=str(message)[:500])
        usage = usage or event.usage
    if b"data: [DONE]" not in answer.tail:
        return Ending("error", error="the stream ended without [DONE]")
    if not usage:
        return Ending("ok")
    details = usage.prompt_tokens_details or CompletionPromptDetails()
    counts = usage.prompt_tokens, details.cached_tokens, usage.completion_tokens
    return Ending("ok", *counts, cached_from=_places(details))


def _places(details: CompletionPromptDetails) -> tuple[int, int, int, int] | None:
    """Cached tokens by place; those in none of the tiers came from elsewhere."""
    tiers = details.cached_tokens_details
    if tiers is None or tiers == CachedTiers():
        return None
    device, host, disk = tiers.device or 0, tiers.host or 0, tiers.storage or 0
    return device, host, disk, max(0, (details.cached_tokens or 0) - device - host - disk)


def _last_events(tail: bytes) -> Iterator[CompletionEvent]:
    """The whole events at the end of a stream, last first, without one that was cut."""
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data: {"):
            with contextlib.suppress(ValueError):
                yield msgspec.json.decode(line[6:], type=CompletionEvent)


def error_text(body: bytes) -> str:
    """The message of an OpenAI-shaped error, otherwise the start of the body."""
    try:
        error = orjson.loads(body)["error"]
        return str(error["message"])[:500]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip()
