"""Removes the location of an answer's KV, and tokens that only this router requested, from the answer. Pure. A vLLM
whose decoders lend their blocks (`bidirectional_kv_xfer`) ends the answer of an offload with host, port and ids of the
blocks. Engines obey those fields, and clients must not learn engines' addresses.
"""

import re

from router.pool.load.lent import LONGEST

KEY = b'"kv_transfer_params"'
_PROMPT, _ANSWER = b'"prompt_token_ids"', b'"token_ids"'
# Quotes inside JSON strings are escaped, so these match keys and never text of the model.
_LOCATION = re.compile(b"(" + KEY + rb")\s*:\s*(\{)")
_ALL = re.compile(rb'("kv_transfer_params"(?=\s*:\s*\{)|"(?:prompt_)?token_ids"(?=\s*:\s*\[))\s*:\s*([{\[])')
_REST = re.compile(rb'"[a-z_]+"\s*(?::\s*)?\Z')
_BRACKETS = {b"{": re.compile(rb"[{}]"), b"[": re.compile(rb"[\[\]]")}


class LocationFilter:
    """Replaces the location by null, and keeps it unless it is too long. Bytes that may be the beginning of a key are
    held back until the rest arrives. In a long value, only new bytes are searched."""

    __slots__ = (
        *("_begun", "_brackets", "_depth", "_held", "_key", "_keys", "_leaves_ids", "_parts", "_size"),
        *("answer_ids", "prompt_ids", "where"),
    )

    def __init__(self, *, ids: bool = False, leaves_ids: bool = False) -> None:
        """With `ids`, also read the tokens of prompt and answer; with `leaves_ids`, leave them in the answer as
        well."""
        self._held, self._leaves_ids = b"", leaves_ids
        self._keys: tuple[bytes, ...] = (KEY, _PROMPT, _ANSWER) if ids else (KEY,)
        self._begun = _ALL if ids else _LOCATION
        self._key, self._depth, self._brackets = b"", 0, _BRACKETS[b"{"]  # state of the value being read
        self._parts: list[bytes] = []  # bytes of that value so far
        self._size = 0  # bytes of all values; beyond LONGEST none is kept
        self.where = self.prompt_ids = b""  # JSON of the last location, and of the prompt's tokens
        self.answer_ids: list[bytes] = []

    @property
    def changes_all(self) -> bool:
        """Return whether every event contains something to remove."""
        return len(self._keys) > 1

    def feed(self, data: bytes) -> bytes:
        data, self._held = self._held + data, b""
        passed: list[bytes] = []
        at = self._read(data, 0, passed) if self._depth else 0
        while not self._depth and (found := self._begun.search(data, at)) is not None:
            self._key, self._brackets = found[1], _BRACKETS[found[2]]
            passed += (data[at : found.start(2)], b"" if self._is_left else b"null")
            at = self._read(data, found.start(2), passed)
        rest = data[at:]
        if not rest.endswith(b"\n\n"):  # an event's end never splits a key
            begun = min(_begun_at(rest, key) for key in self._keys)
            rest, self._held = rest[:begun], rest[begun:]
        return b"".join((*passed, rest)) if passed else rest

    @property
    def _is_left(self) -> bool:
        return self._leaves_ids and self._key != KEY

    def _read(self, data: bytes, at: int, passed: list[bytes]) -> int:
        """Read the value from this position on. Return the position after it, or the data before it if it is
        incomplete."""
        part = data[at : self._end(data, at)]
        self._take(part)
        if self._is_left:
            passed.append(part)
        return at + len(part)

    def _end(self, data: bytes, at: int) -> int:
        """Return the position after the value, or the data before it if it is incomplete."""
        for bracket in self._brackets.finditer(data, at):
            self._depth += 1 if bracket[0] in _BRACKETS else -1
            if not self._depth:
                return bracket.end()
        return len(data)

    def _take(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > LONGEST:
            self._parts, self.where, self.prompt_ids, self.answer_ids = [], b"", b"", []
            return
        self._parts.append(part)
        if self._depth:
            return
        value, self._parts = b"".join(self._parts), []
        if self._key == KEY:
            self.where = value
        elif self._key == _PROMPT:
            self.prompt_ids = value
        else:
            self.answer_ids.append(value)

    def finish(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _begun_at(data: bytes, key: bytes) -> int:
    """Return the beginning of a key whose value is cut off by the end of the data; if there is none, the length of the
    data."""
    at = data.rfind(key)
    if at >= 0 and _REST.match(data, at):
        return at
    least = len(data) - len(key) + 1
    return next((at for at in range(max(0, least), len(data)) if key.startswith(data[at:])), len(data))
