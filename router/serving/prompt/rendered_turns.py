"""Tokens of conversations that only engines can render, kept so that a further turn costs only its new part. Pure. When
the beginning of a conversation is known, the engine renders a shortened form of it twice, without the new turns and
with them. Both must begin and end like the known tokens, otherwise they are useless; the tokens that the second adds
then continue the known ones.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import orjson
import xxhash

from router.contract.values.json_value import JsonObject
from router.prefix.blocks import TOKEN_BYTES
from router.tokenize.billing import without_billing

KEPT_BYTES = 32_000_000
KEPT_S: Final = 600.0  # counted from a full rendering: templates may write the date, and the engine may change
END_CHARS: Final = 128  # characters kept at each end of a text in the shortened form
SURE_BYTES: Final = 32 * TOKEN_BYTES  # bytes compared at the beginning and at the end
_ENTRY_BYTES = 300
# Fields that do not affect the prompt and may differ between the turns of a conversation
_BESIDE = frozenset(
    (
        *("stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "metadata"),
        *("client_metadata", "context_management", "temperature", "seed"),
    )
)
_BY_LENGTH = frozenset(("truncation", "truncate_prompt_tokens"))
_LONG = ("system", "instructions", "tools")  # fields other than the turns that hold long texts


class TurnsOfRequest:
    """The turns of a request, and a digest for each number of turns that includes all other fields."""

    __slots__ = ("_document", "_field", "_turns", "digests")

    def __init__(self, document: JsonObject, api_path: str, pool: str) -> None:
        self._document = document
        self._field = "input" if api_path == "/v1/responses" else "messages"
        turns = document.get(self._field)
        by_length = not _BY_LENGTH.isdisjoint(document)
        self._turns: Sequence[Any] = turns if isinstance(turns, list) and not by_length else ()
        try:
            self.digests = self._digests(api_path, pool)
        except orjson.JSONEncodeError:  # the serializer supports less depth than the parser
            self.digests = []

    def _digests(self, api_path: str, pool: str) -> list[bytes]:
        others = {name: value for name, value in self._document.items() if name not in _BESIDE and name != self._field}
        if "system" in others:
            others["system"] = without_billing(others["system"])
        last = xxhash.xxh3_128_digest(orjson.dumps([pool, api_path, others]))
        made = []
        for turn in self._turns:
            written = orjson.dumps(_unmarked(turn) if api_path == "/v1/messages" else turn)
            last = xxhash.xxh3_128_digest(last + written)
            made.append(last)
        return made

    def short(self, known: int, most: int | None = None) -> bytes:
        """Return the body with at most this many turns; texts that were known before are shortened. Raise
        JSONEncodeError if another field is nested too deeply.
        """
        made = [*map(_short, self._turns[:known]), *self._turns[known:most]]
        long = {name: _short(self._document[name]) for name in _LONG if name in self._document}
        return orjson.dumps({**self._document, **long, self._field: made})


class RenderedTurns:
    """The tokens of conversations rendered by engines, by digest; the least recently used are dropped first."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()  # when rendered in full, tokens
        self._most = most
        self.size = 0

    def longest(self, digests: Sequence[bytes], now: float) -> tuple[int, float, bytes]:
        """Return the number of known turns, the time when they became known, and their tokens."""
        for turns in range(len(digests), 0, -1):
            found = self._kept.get(digests[turns - 1])
            if found is not None and now - found[0] <= KEPT_S:
                self._kept.move_to_end(digests[turns - 1])
                return turns, *found
        return 0, now, b""

    def keep(self, digest: bytes, since: float, tokens: bytes) -> None:
        self._drop(self._kept.pop(digest, None))
        self._kept[digest] = since, tokens
        self.size += len(tokens) + _ENTRY_BYTES
        while self.size > self._most:
            self._drop(self._kept.popitem(last=False)[1])

    def _drop(self, gone: tuple[float, bytes] | None) -> None:
        if gone is not None:
            self.size -= len(gone[1]) + _ENTRY_BYTES


def continued(known: bytes, before: bytes, after: bytes) -> bytes | None:
    """Return the known tokens followed by those that `after` adds to `before`; None if the known tokens begin or end
    differently."""
    same = _alike(before, after)
    end = len(known) - (len(before) - same)  # end of the part that is kept
    sure = min(same, SURE_BYTES)
    alike = end >= sure and known[:sure] == before[:sure] and known[end - sure :] == before[same - sure :]
    return known[:end] + after[same:] if alike else None


def _alike(one: bytes, other: bytes) -> int:
    """Return the length of the common beginning in bytes, in whole tokens."""
    least, most = 0, min(len(one), len(other)) // TOKEN_BYTES
    while least < most:
        middle = (least + most + 1) // 2
        start, end = least * TOKEN_BYTES, middle * TOKEN_BYTES
        if one[start:end] == other[start:end]:
            least = middle
        else:
            most = middle - 1
    return least * TOKEN_BYTES


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:END_CHARS] + value[-END_CHARS:] if len(value) > 3 * END_CHARS else value
    if isinstance(value, list):
        return [_short(each) for each in value]
    if isinstance(value, dict):  # tool arguments are JSON, which the engine parses
        return {name: each if name == "arguments" else _short(each) for name, each in value.items()}
    return value


def _unmarked(turn: Any) -> Any:
    """Return the turn without a vendor's cache marks, which always move to the latest turns."""
    content = turn.get("content") if isinstance(turn, dict) else None
    if not isinstance(content, list) or not any(isinstance(part, dict) and _MARK in part for part in content):
        return turn
    parts = [
        {name: value for name, value in part.items() if name != _MARK} if isinstance(part, dict) else part
        for part in content
    ]
    return {**turn, "content": parts}


_MARK = "cache_control"
