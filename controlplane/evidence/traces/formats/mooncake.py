"""Requests with the ids of their prefix blocks, JSONL: Mooncake's traces, AIPerf's with delays, and Bailian's.

Mooncake's public traces have arrivals in ms, in buckets of three seconds, and blocks of 512 tokens; Bailian's have
seconds and blocks of 16 tokens. A first line {"time_unit": "s", "block_tokens": 64} states another file's values.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controlplane.evidence.traces.formats import arrivals, fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest

SLOWEST_S = 60.0  # interval between requests above which a smaller unit is assumed
STATED = ("time_unit", "block_tokens")


# The prefix blocks of a request: their size, which few files state, and numbers for their ids
SIZES = (512, 256, 128, 64, 32, 16)  # block sizes in tokens; the largest size that fits all rows is used
LARGEST = 4_096
HASH_BITS = 64


class BlockSize:
    """The size of a file's blocks, as far as its rows determine it."""

    def __init__(self, stated: int) -> None:
        self._left: tuple[int, ...] = (stated,) if stated else SIZES
        self._stated = bool(stated)

    def check(self, row: fields.TraceLine, field: str, blocks: int, input_tokens: int) -> None:
        """Check that a row has as many blocks as the prompt fills, with or without a partial last block. If the size is
        stated, the row may list only the blocks at the beginning of the prompt, as AIPerf 0.13 allows."""
        least = {size: 0 if self._stated else input_tokens // size for size in self._left}
        left = tuple(size for size in self._left if least[size] <= blocks <= -(-input_tokens // size))
        if not left:
            word = "to" if self._stated else "or"
            counts = (f"{least[size]:,} {word} {-(-input_tokens // size):,} of {size} tokens" for size in least)
            other = "" if self._stated else '; a first line {"block_tokens": 48} states another size'
            raise row.refused(field, blocks, f"blocks for {input_tokens:,} input tokens: {', '.join(counts)}{other}")
        self._left = left

    @property
    def tokens(self) -> int:
        return self._left[0]


class BlockIds:
    """Numbers for block ids: numeric ids stay as they are; hashes and texts are numbered after them in order of
    appearance, so that the numbers are dense."""

    def __init__(self) -> None:
        self._numbers: dict[int | str, int] = {}

    def of(self, row: fields.TraceLine, field: str) -> list[int]:
        ids = row.present(field)
        if not isinstance(ids, list) or not all(map(_is_id, ids)):
            allowed = f"a list of whole numbers from 0 to {fields.MAX_BLOCK:,}, or of 64-bit hashes"
            raise row.refused(field, ids, allowed)
        return [block if type(block) is int and block <= fields.MAX_BLOCK else self._number(block) for block in ids]

    def _number(self, block: int | str) -> int:
        return self._numbers.setdefault(block, fields.MAX_BLOCK + 1 + len(self._numbers))


def _is_id(block: object) -> bool:
    if isinstance(block, str):
        return 0 < len(block) <= HASH_BITS
    return type(block) is int and 0 <= block < 1 << HASH_BITS


def read(lines: Iterable[str], seed: int) -> LoadedTrace:
    return _Reading("mooncake", "ms").trace(lines, seed)


def read_delays(lines: Iterable[str], seed: int) -> LoadedTrace:
    """Read a file in which turns follow the previous answer after a delay, so that a session plays as a closed loop."""
    return _Reading("aiperf", "ms").trace(lines, seed)


def read_chats(lines: Iterable[str], seed: int) -> LoadedTrace:
    return _Reading("bailian", "s").trace(lines, seed)


@dataclass(slots=True)
class _Reading:
    """The state of reading one file."""

    name: str
    documented: str  # unit of times, unless the file states another
    unit: str = ""  # unit stated by the file
    size: BlockSize = field(default_factory=lambda: BlockSize(0))
    ids: BlockIds = field(default_factory=BlockIds)
    bounds: fields.RunBounds = field(default_factory=fields.RunBounds)
    latest: dict[str, float] = field(default_factory=dict)  # arrival of each session's newest turn, in the file's unit
    chats: dict[int, str] = field(default_factory=dict)  # session by chat

    def trace(self, lines: Iterable[str], seed: int) -> LoadedTrace:
        columns = Columns()
        requests = [one for row in fields.json_rows(lines, columns) if (one := self._request(row))]
        requests = arrivals.in_seconds(requests, "timestamp", self.documented, SLOWEST_S, self.unit)
        requests = [replace(request, block_tokens=self.size.tokens) for request in requests]
        pacing = "closed_loop" if self.name == "aiperf" else "timestamps"
        return arrivals.loaded(self.name, arrivals.spread(requests, seed), columns, pacing=pacing)

    def _request(self, row: fields.TraceLine) -> TraceRequest | None:
        """Return a request with times in the file's unit; None if the line states the file's units instead."""
        if row.values.keys() & set(STATED) and "input_length" not in row.values:
            self._take_stated(row)
            return None
        tokens = row.integer("input_length", 1)
        session = self._session(row)
        delay = row.number("delay", arrivals.LATEST) if row.values.get("delay") is not None else 0.0
        at = self._arrival(row, session, delay)
        if session:
            self.latest[session] = at
        return TraceRequest(
            index=0,
            at_s=at,
            session=session,
            input_tokens=tokens,
            output_tokens=max(1, row.integer("output_length", 0)),
            blocks=self._blocks(row, tokens),
            block_tokens=0,
            think_s=delay,
        )

    def _take_stated(self, row: fields.TraceLine) -> None:
        if "time_unit" in row.values:
            self.unit = row.text("time_unit")
            if self.unit not in arrivals.PER_SECOND:
                raise row.refused("time_unit", self.unit, f"one of {', '.join(arrivals.PER_SECOND)}")
        if "block_tokens" in row.values:
            self.size = BlockSize(row.integer("block_tokens", 1, LARGEST))

    def _arrival(self, row: fields.TraceLine, session: str, delay: float) -> float:
        """Return the arrival; turns after the first may have only a delay."""
        if row.values.get("timestamp") is None and session in self.latest:
            row.columns.read.add("timestamp")
            return self.latest[session] + delay
        return row.number("timestamp", arrivals.LATEST)

    def _blocks(self, row: fields.TraceLine, tokens: int) -> tuple[range, ...]:
        """Return the blocks; empty if the row has no prefix."""
        row.columns.read.add("hash_ids")
        if row.values.get("hash_ids") in (None, []):
            return ()
        ids = self.ids.of(row, "hash_ids")
        self.size.check(row, "hash_ids", len(ids), tokens)
        return self.bounds.check(row, "hash_ids", fields.runs_of(ids))

    def _session(self, row: fields.TraceLine) -> str:
        """Return the session, which some tools write as a number. In a closed loop, a request without a session is a
        session by itself.
        """
        if "chat_id" in row.values:
            return self._chat(row)
        name = row.values.get("session_id")
        row.columns.read.add("session_id")
        if type(name) is int:
            return str(row.integer("session_id", 0, fields.MAX_BLOCK))
        given = "" if name is None else row.session(0, "session_id")
        return given or (f"line-{row.line}" if self.name == "aiperf" else "")

    def _chat(self, row: fields.TraceLine) -> str:
        """Return the first chat of the request's conversation; −1 is never a chat's number."""
        chat = row.integer("chat_id", 0, fields.MAX_BLOCK)
        parent = row.integer("parent_chat_id", -1, fields.MAX_BLOCK) if "parent_chat_id" in row.values else -1
        return self.chats.setdefault(chat, self.chats.get(parent, str(chat)))
