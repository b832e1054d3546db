"""An engine's `usage`, and the removal of a usage chunk that the client did not request. Pure."""

import re

import msgspec

from router.contract.answer import answers
from router.contract.values.json_value import JsonObject
from router.contract.values.reading import reader
from router.upstream.answer.used import LARGEST, PlainUsage, Usage

TRIES = 16  # last "usage" keys examined in a part of a stream, because an engine may send nothing else
HELD = 64 * 1024  # bytes; longer unfinished events are forwarded unchanged
LONGEST_S = 1_000_000  # longest audio

USAGE = b'"usage"'
# Quotes inside a JSON string are escaped, so this matches a key and never text of the model.
_KEY = re.compile(USAGE + rb"\s*:\s*(?=\{)")
_END = re.compile(rb"\n\r?\n")
_plain = reader(PlainUsage)
BLANKS = (b"\n\n", b"\n\r\n")  # ends of events, for either line ending


def parse(raw: JsonObject) -> Usage:
    try:
        plain = _plain(raw)
    except msgspec.ValidationError:
        return _parsed(raw)
    details = plain.prompt_tokens_details
    cached = details.cached_tokens if details is not None else None
    return Usage(plain.prompt_tokens, cached, plain.completion_tokens)


def _parsed(raw: JsonObject) -> Usage:
    if "prompt_tokens" in raw:  # chat, completions, embeddings
        details = raw.get("prompt_tokens_details")
        prompt, cached = _count(raw, "prompt_tokens"), _count(details, "cached_tokens")
        return Usage(prompt, cached, _count(raw, "completion_tokens"), _tiers(details))
    if "input_tokens_details" in raw:  # responses
        details = raw["input_tokens_details"]
        prompt, cached = _count(raw, "input_tokens"), _count(details, "cached_tokens")
        return Usage(prompt, cached, _count(raw, "output_tokens"), _tiers(details))
    # Servers for embeddings and scores may report no output tokens
    if "total_tokens" in raw and "input_tokens" not in raw:
        return Usage(_count(raw, "total_tokens"))
    if raw.get("type") == "duration":
        seconds = raw.get("seconds")
        known = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= LONGEST_S
        return Usage(audio_s=float(seconds) if known else None)  # type: ignore[arg-type]
    return _anthropic(raw)


def _anthropic(raw: JsonObject) -> Usage:
    """Read Anthropic's usage, whose `input_tokens` excludes tokens read from or written to the cache."""
    new, cached = _count(raw, "input_tokens"), _count(raw, "cache_read_input_tokens")
    written = _count(raw, "cache_creation_input_tokens")
    prompt = new + (cached or 0) + (written or 0) if new is not None else None
    return Usage(prompt, cached, _count(raw, "output_tokens"))


def _tiers(details: object) -> tuple[int, int, int] | None:
    """Read the cached tokens by tier, under SGLang's names."""
    tiers = details.get("cached_tokens_details") if isinstance(details, dict) else None
    if not isinstance(tiers, dict):
        return None
    return _count(tiers, "device") or 0, _count(tiers, "host") or 0, _count(tiers, "storage") or 0


def combined(first: Usage | None, last: Usage | None) -> Usage | None:
    """Combine the usage of Anthropic's streams: prompt tokens at the start, output tokens at the end."""
    if first is None or last is None:
        return last or first
    return Usage(
        last.prompt_tokens if last.prompt_tokens is not None else first.prompt_tokens,
        last.cached_tokens if last.cached_tokens is not None else first.cached_tokens,
        last.output_tokens if last.output_tokens is not None else first.output_tokens,
        last.cached_tiers if last.cached_tiers is not None else first.cached_tiers,
        last.audio_s if last.audio_s is not None else first.audio_s,
    )


def _count(raw: object, key: str) -> int | None:
    value = raw.get(key) if isinstance(raw, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST else None


class Strip:
    """Removes the usage chunk from a stream whose client did not request it. The usage chunk has no choices. Other
    bytes pass unchanged; only an unfinished event at the end is held back until it is complete, because it may be the
    usage chunk.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        if not data.endswith(BLANKS):
            data = self._hold(data)
        first = data.find(USAGE)  # `in` is slower, because it first tries to convert its operand to an integer
        return _without_usage(data, first) if first >= 0 else data

    def finish(self) -> bytes:
        """Return the remaining bytes at the end of the stream."""
        data, self._held = self._held, b""
        first = data.find(USAGE)
        return _without_usage(data, first) if first >= 0 else data

    def _hold(self, data: bytes) -> bytes:
        end = end_of_events(data, len(data))
        if len(data) - end > HELD:
            return data
        self._held = data[end:]
        return data[:end]


def _without_usage(data: bytes, first: int) -> bytes:
    """Remove the usage, whose first key is at `first`; only the last TRIES events with that key are examined."""
    end = len(data)
    for _ in range(TRIES):
        key = data.rfind(USAGE, first, end)
        if key < 0:
            break
        start, stop = _event_around(data, key)
        if _is_usage_chunk(data[start:stop]):
            data = data[:start] + data[stop:]
        end = start
    return data


def end_of_events(data: bytes, before: int) -> int:
    """Return the position after the last blank line that ends by `before`, or 0."""
    bare = data.rfind(b"\n\n", 0, before)
    crlf = data.rfind(b"\n\r\n", max(bare, 0), before)  # searching from the start would mostly be wasted
    return max(bare + 2 if bare >= 0 else 0, crlf + 3 if crlf >= 0 else 0)


def _event_around(data: bytes, position: int) -> tuple[int, int]:
    """Return start and end of the event, including its blank line."""
    start = end_of_events(data, position)
    end = _END.search(data, position)
    return start, end.end() if end is not None else len(data)


def _is_usage_chunk(event: bytes) -> bool:
    if event.find(b'"choices"') < 0 or not _KEY.search(event):
        return False
    chunk = answers.json_object(answers.payload(event.strip()))
    return chunk is not None and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
