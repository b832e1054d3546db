"""The first token of a stream: taken from one stream, removed from another. Pure; chat and plain completions."""

import re
from collections.abc import Iterator
from typing import Any

import orjson

_END = re.compile(rb"\r?\n\r?\n")


class Chunk:
    """The JSON of one event of a stream."""

    def __init__(self, made: dict[str, Any]) -> None:
        self.made = made
        self.choices: list[Any] = made.get("choices") or []

    @property
    def text(self) -> str:
        if not self.choices:
            return ""
        choice = self.choices[0]
        delta = choice.get("delta")
        return str((delta.get("content") if isinstance(delta, dict) else choice.get("text")) or "")

    @text.setter
    def text(self, text: str) -> None:
        choice = self.choices[0]
        if isinstance(choice.get("delta"), dict):
            choice["delta"]["content"] = text
        else:
            choice["text"] = text

    @property
    def ends(self) -> bool:
        return self.choices[0].get("finish_reason") is not None

    def written(self) -> bytes:
        return b"data: %b\n\n" % orjson.dumps(self.made)


def chunks(stream: bytes) -> Iterator[Chunk]:
    """Events without JSON are skipped."""
    return (chunk for chunk in map(_parsed, _END.split(stream)) if chunk is not None)


def _parsed(raw: bytes) -> Chunk | None:
    data = raw.strip()
    if not data.startswith(b"data:"):
        return None
    try:
        made = orjson.loads(data[5:])
    except orjson.JSONDecodeError:
        return None
    return Chunk(made) if isinstance(made, dict) else None


def first_token(stream: bytes) -> bytes:
    """A stream of one token as the beginning of a longer one: without finish reason and usage."""
    kept = [chunk for chunk in chunks(stream) if chunk.choices]
    for chunk in kept:
        for choice in chunk.choices:
            choice["finish_reason"] = None
            choice.pop("stop_reason", None)
        chunk.made.pop("usage", None)
    return b"".join(chunk.written() for chunk in kept)


class Without:
    """Removes text that was sent already from the beginning of a stream.

    When the decoder's first text differs, its first event is dropped. The rest passes unchanged.
    """

    def __init__(self, said: bytes) -> None:
        self._said: bytes | None = said
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if self._said is None:
            return data
        data, self._held = self._held + data, b""
        out = []
        while self._said is not None and (end := _END.search(data)) is not None:
            out.append(self._event(data[: end.end()]))
            data = data[end.end() :]
        if self._said is None:
            return b"".join((*out, data))
        self._held = data
        return b"".join(out)

    def finish(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _event(self, raw: bytes) -> bytes:
        chunk = _parsed(raw)
        if chunk is None or not chunk.choices:
            return raw  # [DONE], a comment, an error, usage
        if not chunk.text and not chunk.ends:
            return b""  # the role: the prefill has sent it
        said = (self._said or b"").decode()
        self._said = None
        rest = chunk.text[len(said) :] if chunk.text.startswith(said) else ""
        if not rest and not chunk.ends:
            return b""
        chunk.text = rest
        return chunk.written()
