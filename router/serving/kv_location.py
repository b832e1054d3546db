"""Leaves out of an answer where its KV lies, and the tokens that only this router asked for. Pure.

A vLLM whose decoders lend their blocks (`bidirectional_kv_xfer`) ends the answer of an offload with their host, port
and ids. Engines obey those fields, and clients are not to know engines' addresses.
"""

import re

KEY = b'"kv_transfer_params"'
LONGEST = 1024 * 1024  # bytes held back at most, as blocks are listed one by one
_PROMPT, _ANSWER = b'"prompt_token_ids"', b'"token_ids"'
# Quotes inside JSON strings are escaped, so these are keys and never text of the model.
_LOCATION = re.compile(KEY + rb"(\s*:\s*)(\{[^{}]*\})")
_ALL = re.compile(rb'("kv_transfer_params"|"prompt_token_ids"|"token_ids")(\s*:\s*)(\{[^{}]*\}|\[[^\[\]]*\])')
_REST = re.compile(rb'"[a-z_]+"\s*(?::\s*(?:\{[^{}]*|\[[^\[\]]*)?)?\Z')


class LocationFilter:
    """Replaces the location by null, and keeps it. Bytes that may turn out to be one are held back until the rest
    arrives."""

    __slots__ = ("_held", "_keys", "_leaves_ids", "answer_ids", "prompt_ids", "where")

    def __init__(self, *, ids: bool = False, leaves_ids: bool = False) -> None:
        """`ids`: also the tokens of prompt and answer; `leaves_ids`: they are kept, and left where they are."""
        self._held, self._leaves_ids = b"", leaves_ids
        self._keys = (KEY, _PROMPT, _ANSWER) if ids else (KEY,)
        self.where = self.prompt_ids = b""  # JSON of the last location, and of the prompt's tokens
        self.answer_ids: list[bytes] = []

    @property
    def changes_all(self) -> bool:
        """Return whether every event has something to leave out."""
        return len(self._keys) > 1

    def feed(self, data: bytes) -> bytes:
        data, self._held = self._held + data, b""
        if self.changes_all:
            data = _ALL.sub(self._take, data)
        elif KEY in data:
            data = _LOCATION.sub(self._take, data)
        if data.endswith(b"\n\n"):  # an event's end cuts off no key
            return data
        begun = min(_begun_at(data, key) for key in self._keys)
        data, self._held = data[:begun], data[begun:]
        return data

    def _take(self, found: "re.Match[bytes]") -> bytes:
        *_, between, value = found.groups()
        if value[:1] == b"{":
            self.where = value
            return KEY + between + b"null"
        if found[1] == _PROMPT:
            self.prompt_ids = value
        else:
            self.answer_ids.append(value)
        return found[0] if self._leaves_ids else found[1] + between + b"null"

    def finish(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _begun_at(data: bytes, key: bytes) -> int:
    """Return where the key begins whose value the end of the data cuts off; the length of the data without one."""
    at = data.rfind(key, max(0, len(data) - LONGEST))
    if at >= 0 and _REST.match(data, at):
        return at
    least = len(data) - len(key) + 1
    return next((at for at in range(max(0, least), len(data)) if key.startswith(data[at:])), len(data))
