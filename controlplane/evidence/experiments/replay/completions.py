"""Streamed completions of the OpenAI API: the request body, and the outcome from the end of the response."""

import contextlib
from dataclasses import dataclass

import msgspec
import orjson
from msgspec import Struct

from controlplane.evidence.experiments.replay.client import ReplayAnswer
from router.contract.answer import answers
from router.contract.answer.verdict import VERDICTS, of_routers_answer
from router.contract.values.json_value import JsonObject
from router.contract.values.reading import read_value

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class RequestEnding:
    """The outcome of a request. Token counts are None if the response has none."""

    outcome: str  # "ok", "client_error", "error" or "refused"
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    cached_from: tuple[int, int, int, int] | None = None  # tokens from device, host memory, disk, elsewhere


class CachedTiers(Struct, frozen=True):
    """Cached tokens by tier, under SGLang's names."""

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


def body_of(model: str, prompt: str, max_tokens: int) -> bytes:
    """Return a body that requests exactly `max_tokens` tokens, streamed, with usage at the end."""
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


def ending_of(answer: ReplayAnswer) -> RequestEnding:
    """Return the outcome from the status and the last events, judged as routers judge them."""
    tail = bytes(answer.tail)
    if answer.status != 200:
        label = VERDICTS[of_routers_answer(answer.status, error_code(tail))].label
        return RequestEnding("error" if label == "ok" else label, error=f"{answer.status} {error_text(tail)}".strip())
    end = answers.ending(tail)
    if end.error is not None:
        result = answers.result_of(end.error, has_content=bool(answer.first_at))
        return RequestEnding(VERDICTS[result].label, error=end.error.message)
    if not end.is_over:
        return RequestEnding("error", error="the stream ended without [DONE]")
    if not answer.first_at:
        return RequestEnding("error", error=answers.NO_CONTENT)
    usage = _usage_of(end.usage)
    details = usage.prompt_tokens_details or CompletionPromptDetails()
    counts = usage.prompt_tokens, details.cached_tokens, usage.completion_tokens
    return RequestEnding("ok", *counts, cached_from=_places(details))


def _usage_of(reported: JsonObject | None) -> CompletionUsage:
    """Return the usage; empty if its shape is unknown."""
    with contextlib.suppress(msgspec.ValidationError):
        return read_value(reported or {}, CompletionUsage)
    return CompletionUsage()


def _places(details: CompletionPromptDetails) -> tuple[int, int, int, int] | None:
    """Return cached tokens by place; tokens in none of the tiers are from elsewhere."""
    tiers = details.cached_tokens_details
    if tiers is None or tiers == CachedTiers():
        return None
    device, host, disk = tiers.device or 0, tiers.host or 0, tiers.storage or 0
    return device, host, disk, max(0, (details.cached_tokens or 0) - device - host - disk)


def error_code(body: bytes) -> object:
    """Return the code of an OpenAI-shaped error; None without one."""
    try:
        return orjson.loads(body)["error"]["code"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def error_text(body: bytes) -> str:
    """Return the message of an OpenAI-shaped error, otherwise the start of the body."""
    try:
        error = orjson.loads(body)["error"]
        return str(error["message"])[:500]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip()
