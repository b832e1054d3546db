"""The first token of a stream: taken from one stream, removed from another. Pure; chat and plain completions. Text sent
by one stream is removed from the other, field by field and for each choice, whatever the fields are called: text,
reasoning, a refusal, the name and arguments of a tool call. Everything else passes unchanged.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from router.contract.answer import answers

_END = re.compile(rb"\r?\n\r?\n")
_WHOLE = ("role", "type", "id")  # texts that arrive whole; others arrive in parts
_OF_PARTS = ("delta", "text")  # fields of a choice that hold the answer
_HALF = "\ufffd"  # in place of a character whose other bytes arrive with later tokens

DEEPEST = 4  # nesting of objects within a delta; engines nest two deep

Said = dict[Any, Any]  # field: its text; (field, index): the text within that object


class Chunk:
    """One event of a stream as JSON."""

    def __init__(self, made: dict[str, Any]) -> None:
        self.made = made
        choices = made.get("choices")
        listed = choices if isinstance(choices, list) else []
        self.choices: list[dict[str, Any]] = [c for c in listed if isinstance(c, dict)]

    def written(self) -> bytes:
        return b"data: %b\n\n" % orjson.dumps(self.made)


def chunks(stream: bytes) -> Iterator[Chunk]:
    """Return the stream's events; those without JSON are skipped."""
    return (chunk for chunk in map(_parsed, _END.split(stream)) if chunk is not None)


def _parsed(raw: bytes) -> Chunk | None:
    made = answers.json_object(answers.payload(raw.strip()))
    return Chunk(made) if made is not None else None


def first_token(stream: bytes) -> bytes:
    """Turn a one-token stream into the beginning of a longer one: drop its end, usage and token data, which the other
    stream also sends."""
    kept = [chunk for chunk in chunks(stream) if chunk.choices]
    for chunk in kept:
        for choice in chunk.choices:
            for name in choice.keys() - {"index", *_OF_PARTS}:
                choice[name] = None
            choice.update({name: _without_half(part) for name, part in _answer(choice).items()})
        for name in ("usage", "prompt_token_ids", "prompt_logprobs"):
            chunk.made.pop(name, None)
    written = []
    for chunk in kept:
        with contextlib.suppress(orjson.JSONEncodeError):  # nested too deeply
            written.append(chunk.written())
    return b"".join(written)


def _without_half(part: Any, depth: int = 0) -> Any:
    """Leave out the beginning of a character, which the other stream sends whole."""
    if isinstance(part, dict) and depth < DEEPEST:
        return {name: _without_half(below, depth + 1) for name, below in part.items()}
    if isinstance(part, list) and depth < DEEPEST:
        return [_without_half(below, depth + 1) for below in part]
    return part.rstrip(_HALF) if isinstance(part, str) else part


def usage_of(stream: bytes) -> object:
    """Return the usage that a stream reports; None if it reports none."""
    return next((chunk.made["usage"] for chunk in chunks(stream) if chunk.made.get("usage")), None)


class Without:
    """Removes from the beginning of one stream what another stream has already sent.
    When the first words differ, those of the first event are dropped. The rest passes unchanged.
    """

    def __init__(self, beginning: bytes) -> None:
        self._said: dict[int, Said] = {}  # by choice
        self._begun: set[int] = set()  # choices with content so far
        self._held = b""
        for chunk in chunks(beginning):
            for number, parts in _numbered(chunk.choices):
                _add(self._said.setdefault(number, {}), _answer(parts))
        self._said = {number: said for number, said in self._said.items() if said}

    def feed(self, data: bytes) -> bytes:
        if not self._said:
            return data
        data, self._held = self._held + data, b""
        out = []
        while self._said and (end := _END.search(data)) is not None:
            out.append(self._event(data[: end.end()]))
            data = data[end.end() :]
        if not self._said:
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
        try:
            before = orjson.dumps(chunk.made)
        except orjson.JSONEncodeError:
            return raw  # nested too deeply to serialize
        for number, choice in _numbered(chunk.choices):
            self._take(number, choice)
        if orjson.dumps(chunk.made) == before:
            return raw
        return chunk.written() if chunk.made.get("usage") or any(map(_tells, chunk.choices)) else b""

    def _take(self, number: int, choice: dict[str, Any]) -> None:
        said = self._said.get(number)
        if said is None:
            return
        parts = _answer(choice)
        speaks = any(_tells(part, _WHOLE) for part in parts.values())
        _remove(said, parts, at_once=number not in self._begun)
        choice.update(parts)
        if speaks:
            self._begun.add(number)
        if not said or choice.get("finish_reason") is not None:
            del self._said[number]


def _numbered(items: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return a list's items with their `index`, which identifies each across events."""
    for place, item in enumerate(items):
        if isinstance(item, dict):
            index = item.get("index")
            yield (index if isinstance(index, int) else place), item


def _answer(choice: dict[str, Any]) -> dict[str, Any]:
    return {name: choice[name] for name in _OF_PARTS if name in choice}


def _below(part: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Return the objects in a field, with their keys in Said."""
    if isinstance(part, dict):
        yield "", part
    elif isinstance(part, list):
        yield from _numbered(part)


def _add(said: Said, parts: dict[str, Any], depth: int = 0) -> None:
    for name, part in parts.items():
        if isinstance(part, str) and part:
            said[name] = part if name in _WHOLE else said.get(name, "") + part
        elif depth < DEEPEST:
            for key, below in _below(part):
                _add(said.setdefault((name, key), {}), below, depth + 1)
                if not said[name, key]:
                    del said[name, key]


def _remove(said: Said, parts: dict[str, Any], *, at_once: bool) -> None:
    """Remove known text from the object. `at_once` is True if no event came before."""
    for name, part in list(parts.items()):
        if isinstance(part, str) and name in said:
            _remove_text(said, parts, name, at_once=at_once)
        for key, below in _below(part):
            if (name, key) in said:
                _remove(said[name, key], below, at_once=at_once)
                if not said[name, key]:
                    del said[name, key]


def _remove_text(said: Said, parts: dict[str, Any], name: str, *, at_once: bool) -> None:
    before, text = said.pop(name), parts[name]
    if name in _WHOLE:
        del parts[name]
    elif text.startswith(before):
        parts[name] = text[len(before) :]
    elif before.startswith(text):
        said[name], parts[name] = before[len(text) :], ""
    elif at_once:
        parts[name] = ""


def _tells(part: Any, besides: Iterable[str] = ()) -> bool:
    """Return whether the value holds any content."""
    if isinstance(part, dict):
        return any(_tells(below, besides) for name, below in part.items() if name != "index" and name not in besides)
    if isinstance(part, list):
        return any(_tells(below, besides) for below in part)
    return part is not None and part is not False and part != ""
