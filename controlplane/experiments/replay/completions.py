"""Streamed completions of the OpenAI API: the request body, and the outcome from the end of the response."""

from dataclasses import dataclass
from typing import Any

import orjson

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


def body_of(model: str, prompt: str, max_tokens: int) -> bytes:
    """Asks for exactly `max_tokens` tokens, streamed, with usage at the end."""
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
    usage: dict[str, Any] | None = None
    for event in _last_events(bytes(answer.tail)):
        if "error" in event:
            return Ending("error", error=str(event["error"].get("message", event["error"]))[:500])
        usage = usage or event.get("usage")
    if b"data: [DONE]" not in answer.tail:
        return Ending("error", error="the stream ended without [DONE]")
    if not usage:
        return Ending("ok")
    details = usage.get("prompt_tokens_details") or {}
    counts = usage.get("prompt_tokens"), details.get("cached_tokens"), usage.get("completion_tokens")
    return Ending("ok", *counts, cached_from=_places(details))


def _places(details: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """As SGLang names them; what is in none of them came from elsewhere."""
    tiers = details.get("cached_tokens_details")
    if not tiers:
        return None
    device, host, disk = (tiers.get(name) or 0 for name in ("device", "host", "storage"))
    return device, host, disk, max(0, (details.get("cached_tokens") or 0) - device - host - disk)


def _last_events(tail: bytes) -> list[dict[str, Any]]:
    """The whole events at the end of a stream, last first, without one that was cut."""
    events = []
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data: {"):
            try:
                event = orjson.loads(line[6:])
            except orjson.JSONDecodeError:
                continue
            events.append(event)
    return events


def error_text(body: bytes) -> str:
    """The message of an OpenAI-shaped error, otherwise the start of the body."""
    try:
        error = orjson.loads(body)["error"]
        return str(error["message"])[:500]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip()
