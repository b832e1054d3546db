"""Leaves out of an answer where its KV lies. Pure.

A vLLM whose decoders lend their blocks (`bidirectional_kv_xfer`) ends the answer of an offload with their host, port
and ids. Engines obey those fields, and clients are not to know engines' addresses.
"""

import re

KEY = b'"kv_transfer_params"'
LONGEST = 1024 * 1024  # bytes held back at most, as blocks are listed one by one
# Quotes inside JSON strings are escaped, so this is a key and never text of the model.
_LOCATION = re.compile(KEY + rb"(\s*:\s*)\{[^{}]*\}")
_BEGUN = re.compile(KEY + rb"\s*(?::\s*(?:\{[^{}]*)?)?\Z")


class LocationFilter:
    """Replaces the location by null. Bytes that may turn out to be one are held back until the rest arrives."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data, self._held = self._held + data, b""
        if data.find(KEY) >= 0:  # `in` is slower, as it tries an integer first
            data = _LOCATION.sub(KEY + rb"\1null", data)
        if data.endswith(b"\n\n"):  # an event's end cuts off no key
            return data
        begun = _begun_at(data)
        data, self._held = data[:begun], data[begun:]
        return data

    def finish(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _begun_at(data: bytes) -> int:
    """Return where a location begins that the end of the data cuts off; the length of the data without one."""
    key = data.rfind(KEY, max(0, len(data) - LONGEST))
    if key >= 0 and _BEGUN.match(data, key):
        return key
    least = len(data) - len(KEY) + 1
    return next((at for at in range(max(0, least), len(data)) if KEY.startswith(data[at:])), len(data))
