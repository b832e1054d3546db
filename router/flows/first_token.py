"""The first token of a stream: taken from one stream, removed from another. Pure; chat and plain completions."""

import re
from collections.abc import Iterator
from typing import Any

import orjson

_END = re.compile(rb"\r?\n\r?\n")


def events(stream: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The JSON of each event and the text that it adds; other events are skipped."""
    for raw in _END.split(stream):
        made = _parsed(raw)
        if made is not None:
            yield made, _text(made).encode()


def first_token(stream: bytes) -> bytes:
    """A stream of one token as the beginning of a longer one: without finish reason and usage."""
    kept = []
    for made, _ in events(stream):
        for choice in made.get("choices") or ():
            choice["finish_reason"] = None
            choice.pop("stop_reason", None)
        made.pop("usage", None)
        if made.get("choices"):
            kept.append(_written(made))
    return b"".join(kept)


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
        made = _parsed(raw)
        if made is None or not made.get("choices"):
            return raw  # [DONE], a comment, an error, usage
        text = _text(made)
        said = (self._said or b"").decode()
        if not text and made["choices"][0].get("finish_reason") is None:
            return b""  # the role: the prefill has sent it
        self._said = None
        rest = text[len(said) :] if text.startswith(said) else ""
        if not rest and made["choices"][0].get("finish_reason") is None:
            return b""
        _put(made, rest)
        return _written(made)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    data = raw.strip()
    if not data.startswith(b"data:"):
        return None
    try:
        made = orjson.loads(data[5:])
    except orjson.JSONDecodeError:
        return None
    return made if isinstance(made, dict) else None


def _written(made: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(made)


def _text(made: dict[str, Any]) -> str:
    for choice in made.get("choices") or ():
        delta = choice.get("delta")
        return str((delta.get("content") if isinstance(delta, dict) else choice.get("text")) or "")
    return ""


def _put(made: dict[str, Any], text: str) -> None:
    choice = made["choices"][0]
    if isinstance(choice.get("delta"), dict):
        choice["delta"]["content"] = text
    else:
        choice["text"] = text
