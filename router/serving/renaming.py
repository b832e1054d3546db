"""Gives the model of an answer the name that the client asked for, in a body and in each event of a stream. Pure."""

import json
import re
from functools import lru_cache

LONGEST = 1024  # bytes held back at most; a key with a longer value passes unchanged
# A key or value cut off at the end of the bytes so far: "m, "model, "model":"lla
_CUT_OFF = re.compile(rb'"(?:m(?:o(?:d(?:e(?:l(?:"\s*(?::\s*(?:"[^"]*)?)?)?)?)?)?)?)?\Z')
_KEY = b'"model"'


class Rename:
    """Quotes inside JSON strings are escaped, so a match is always a key with its value, never generated text.

    Bytes that may turn out to be the key are held back until the rest arrives.
    """

    __slots__ = ("_held", "_named", "_pattern")

    def __init__(self, served: str, asked: str) -> None:
        self._pattern = _pattern(served)
        self._named = json.dumps(asked, ensure_ascii=False).encode("utf-8", "replace")
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        if not data.endswith(b"\n\n"):  # else no key is cut off there
            data = self._hold(data)
        return self._pattern.sub(self._replaced, data) if _KEY in data else data

    def finish(self) -> bytes:
        data, self._held = self._held, b""
        return data

    def _replaced(self, match: "re.Match[bytes]") -> bytes:
        return match[1] + self._named

    def _hold(self, data: bytes) -> bytes:
        begun = _CUT_OFF.search(data, max(0, len(data) - LONGEST))
        if begun is None:
            return data
        self._held = data[begun.start() :]
        return data[: begun.start()]


@lru_cache(maxsize=2000)
def _pattern(served: str) -> "re.Pattern[bytes]":
    written = {json.dumps(served, ensure_ascii=plain) for plain in (True, False)}
    written |= {text.replace("/", "\\/") for text in written}
    either = b"|".join(sorted(re.escape(text.encode("utf-8", "replace")) for text in written))
    return re.compile(rb'("model"\s*:\s*)(?:%b)' % either)
