"""Clients' names for sessions, in order of trust: one table for headers and bodies. Pure. Names of a single
conversation come first, names that may be broader follow, and persons and applications are last.
"""

import re
from collections.abc import Mapping, Sequence

import orjson

from router.contract.values.json_value import JsonObject

LONGEST = 256  # bytes of a header, characters of a field
ALLOWED = "header:NAME or body:FIELD.FIELD, separated by commas"
MOST_NAMES = 64


class NameRow:
    __slots__ = ("beside", "of_many", "path", "place", "within", "words")

    def __init__(self, place: str, path: str, beside: bytes = b"", of_many: bool = False, within: bool = False) -> None:
        self.place = place  # header or body
        self.path = path  # path of a field, separated by dots; a string that contains JSON is entered like an object
        self.beside = beside  # header without which this name has another meaning
        # True if the name stands for a person or an application, which may have several conversations at once
        self.of_many = of_many
        self.within = within  # True if the name tells apart conversations of what `beside` names
        self.words = f"{place}:{path}"


Name = tuple[int, str, NameRow]  # (rank of the row, text, row); a lower rank is trusted more, and ranks are unique


NAMES = (
    NameRow("header", "x-session-id"),
    NameRow("header", "x-claude-code-agent-id", b"x-claude-code-session-id", within=True),
    NameRow("header", "x-claude-code-session-id"),
    NameRow("header", "thread-id"),  # Codex: one conversation, whereas its `session-id` may cover several
    NameRow("header", "session-id"),
    NameRow("header", "session_id"),  # Codex, until 2025
    NameRow("header", "x-dynamo-session-id"),
    NameRow("header", "x-session-affinity"),  # crush, AIPerf
    NameRow("header", "x-amp-thread-id"),
    NameRow("header", "x-smg-routing-key"),
    NameRow("header", "x-multi-turn-session-id"),  # clients of TensorRT-LLM
    NameRow("header", "x-litellm-session-id"),  # litellm, OpenHands
    NameRow("header", "x-openwebui-chat-id"),
    NameRow("header", "agent-session-id"),  # Goose
    NameRow("header", "x-kilocode-taskid"),
    NameRow("body", "session_id"),
    NameRow("body", "conversation_params.conversation_id"),  # TensorRT-LLM 1.4
    # Codex, Zed; OpenAI's successor of `user`, so applications give all their conversations the same
    NameRow("body", "prompt_cache_key", of_many=True),
    NameRow("body", "conversation"),
    NameRow("body", "conversation.id"),
    NameRow("body", "metadata.session_id"),
    NameRow("body", "client_metadata.session_id"),
    NameRow("body", "metadata.user_id.session_id"),  # Claude Code
    # The id of a single request unless that header is present
    NameRow("header", "x-client-request-id", b"x-codex-window-id"),
    NameRow("header", "x-correlation-id"),  # AIPerf
    NameRow("body", "metadata.user_id", of_many=True),
    NameRow("body", "safety_identifier", of_many=True),
    NameRow("body", "user", of_many=True),
)
_OLD_CLAUDE_CODE = re.compile(r"user_[0-9a-f]{64}_account_[0-9a-f-]*_session_(?P<session_id>[0-9a-f-]{36})")


class SessionNames:
    """Finds the name of a request's session in its headers and body, by rows in order of preference."""

    def __init__(self, rows: Sequence[NameRow] = NAMES) -> None:
        ranked = list(enumerate(rows))
        self.rows = tuple(rows)
        self._headers = [(rank, row, row.path.encode()) for rank, row in ranked if row.place == "header"]
        self._fields = [(rank, row, row.path.split(".")) for rank, row in ranked if row.place == "body"]
        self._names = frozenset(name for _, _, name in self._headers)
        self._first = frozenset(path[0] for _, _, path in self._fields)
        self._by_first = {first: [one for one in self._fields if one[2][0] == first] for first in self._first}

    def of_headers(self, headers: Mapping[bytes, bytes]) -> Name | None:
        if self._names.isdisjoint(headers):  # true for most requests
            return None
        for rank, row, name in self._headers:
            if (value := headers.get(name)) and (not row.beside or row.beside in headers):
                if row.within:
                    value = b"%b %b" % (headers[row.beside], value)
                return rank, value[:LONGEST].decode("utf-8", "replace"), row
        return None

    def of_body(self, document: JsonObject) -> Name | None:
        named = self._first.intersection(document)
        if not named:
            return None
        for rank, row, path in self._fields if len(named) > 1 else self._by_first[next(iter(named))]:
            if (first := path[0]) in document:
                value = document[first]
                text = _text(document, path) if len(path) > 1 else value if isinstance(value, str) else ""
                if text:
                    return rank, text[:LONGEST], row
        return None


DEFAULT_NAMES = SessionNames()


def _text(document: JsonObject, path: Sequence[str]) -> str:
    """Return the text; empty if there is none."""
    value: object = document
    for name in path:
        inside = _parsed(value) if isinstance(value, str) else value
        value = inside.get(name) if isinstance(inside, dict) else None
    return value if isinstance(value, str) else ""


def _parsed(text: str) -> object:
    """Parse text that contains a JSON object, or the joined form that Claude Code sent before it used JSON."""
    if not text.startswith("{"):
        joined = _OLD_CLAUDE_CODE.fullmatch(text)
        return joined.groupdict() if joined is not None else None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def parse(text: str) -> SessionNames:
    """Parse the value of an option. Raise ValueError with the fault."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_NAMES:
        raise ValueError(f"{len(parts)} names: allowed are 1 to {MOST_NAMES}")
    known = {row.words: row for row in NAMES}
    return SessionNames([known.get(part.lower()) or _row(part) for part in parts])


def _row(text: str) -> NameRow:
    place, _, path = text.partition(":")
    if place == "header" and re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", path):
        return NameRow(place, path.lower())
    if place == "body" and len(path) <= 100 and all(path.split(".")):
        return NameRow(place, path)
    raise ValueError(f"{text!r}: allowed are {ALLOWED}")
