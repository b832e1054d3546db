"""Replaces the model's name in an answer by the name that the client requested, in a body and in each event of a
stream. Pure."""

import json
import re
from functools import lru_cache

from router.contract.answer import answers

LONGEST = 1024  # most bytes held back; a key with a longer value passes unchanged
LARGEST = 1024 * 1024  # bytes of an answer or event that are searched for the engine's model name
MOST_EVENTS = 8  # events with data that are searched for the name
# Matches a key or value that is cut off by the end of the data: "m, "model, "model":"lla
_CUT_OFF = re.compile(rb'"(?:m(?:o(?:d(?:e(?:l(?:"\s*(?::\s*(?:"[^"]*)?)?)?)?)?)?)?)?\Z')
_KEY = b'"model"'
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"^data:(.*)$", re.MULTILINE)
_READABLE = (b"{", b"data:", b"event:", b"id:", b"retry:", b":")  # beginnings of JSON and of events


class Rename:
    """Replaces the engine's name of the model by the client's, even if the engine names another model than requested.
    The engine's own name is read from the first events, or from a whole answer. Quotes inside JSON strings are escaped,
    so a match is always a key with its value, never generated text. Bytes that may be the beginning of the key are held
    back until the rest arrives.
    """

    __slots__ = ("_asked", "_beginning", "_events", "_held", "_named", "_pattern", "_served")

    def __init__(self, served: str, asked: str) -> None:
        self._served, self._asked = served, asked
        self._pattern = _pattern(served, served)
        self._named = json.dumps(asked, ensure_ascii=False).encode("utf-8", "replace")
        self._held = b""
        self._beginning: bytes | None = b""  # bytes held back; None: the engine's name is known, or not searched for
        self._events = 0  # events searched for the name

    def feed(self, data: bytes) -> bytes:
        if self._beginning is not None:
            data = self._learn(self._beginning + data)
        if self._held:
            data, self._held = self._held + data, b""
        if _KEY in data:
            data = self._pattern.sub(self._replaced, data)
        return data if data.endswith(b"\n\n") else self._hold(data)  # an event's end never splits a key

    def finish(self) -> bytes:
        beginning, self._beginning = self._beginning, None
        data, self._held = self._held, b""
        if beginning:
            self._take(_name_of(beginning))
            data = self._pattern.sub(self._replaced, data + beginning)
        return data

    def _learn(self, data: bytes) -> bytes:
        """Search for the engine's name. Return the bytes that may be passed on."""
        start = data.lstrip()
        is_text = not start or start.startswith(_READABLE) or any(one.startswith(start) for one in _READABLE)
        if not is_text or len(data) > LARGEST or self._events >= MOST_EVENTS:
            self._beginning = None
            return data
        if start.startswith(b"{"):
            self._beginning = data
            return b""
        return self._learn_by_event(data)

    def _learn_by_event(self, data: bytes) -> bytes:
        at = 0
        for end in _EVENT_END.finditer(data):
            said = _DATA.findall(data[at : end.start()])
            at, self._events = end.end(), self._events + bool(said)
            if name := _name_of(b"\n".join(said)):
                self._take(name)
                self._beginning = None
                return data
        self._beginning = data[at:]
        return data[:at]

    def _take(self, name: str) -> None:
        if name and name not in (self._served, self._asked):
            self._pattern = _pattern(self._served, name)

    def _replaced(self, match: "re.Match[bytes]") -> bytes:
        return match[1] + self._named

    def _hold(self, data: bytes) -> bytes:
        begun = _CUT_OFF.search(data, max(0, len(data) - LONGEST))
        if begun is None:
            return data
        self._held = data[begun.start() :]
        return data[: begun.start()]


def _name_of(text: bytes) -> str:
    """Return the model in an answer or event, possibly nested; empty if there is none."""
    if _KEY not in text:
        return ""
    within = answers.json_object(text) or {}
    places = (within, *(within.get(name) for name in ("response", "message")))
    names = (place.get("model") for place in places if isinstance(place, dict))
    return next((name for name in names if isinstance(name, str)), "")


@lru_cache(maxsize=2000)
def _pattern(*served: str) -> "re.Pattern[bytes]":
    written = {json.dumps(name, ensure_ascii=plain) for name in served for plain in (True, False)}
    written |= {text.replace("/", "\\/") for text in written}
    either = b"|".join(sorted(re.escape(text.encode("utf-8", "replace")) for text in written))
    return re.compile(rb'("model"\s*:\s*)(?:%b)' % either)
