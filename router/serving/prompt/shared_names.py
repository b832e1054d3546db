"""Distinguishes names of one conversation from names shared by many conversations, such as an application's name in
`user`. For each name, it counts the different beginnings of prompts over a period: a session has few, however many
requests it makes.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import xxhash

from router.tokenize import Prompt

MOST: Final = 64  # beginnings per session and period; an agent starts subagents and truncates its history
MOST_OF_MANY: Final = 16  # the same for names that may stand for a person or an application
STRETCH_S: Final = 600
KEPT = 1_024  # names; the busiest stay
SIGN_CHARS: Final = 1_024  # last characters of a beginning, which identify it, since instructions come first
PLAIN_BYTES = 256  # bytes of a prompt without messages


class _Beginnings:
    __slots__ = ("began", "seen", "was_shared")

    def __init__(self, now: float) -> None:
        self.began = now
        self.seen: set[int] = set()
        self.was_shared = False  # True if it was shared in the previous period

    def add(self, beginning: int, most: int, now: float) -> bool:
        """Add a beginning; return True if there are more than `most`."""
        if now - self.began > STRETCH_S:
            follows = now - self.began <= 2 * STRETCH_S
            self.began, self.was_shared, self.seen = now, follows and len(self.seen) > most, set()
        if len(self.seen) <= most:
            self.seen.add(beginning)
        return self.was_shared or len(self.seen) > most


class SharedNames:
    def __init__(self) -> None:
        self._by_name: OrderedDict[str, _Beginnings] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    def is_shared(self, name: str, read: Prompt, most: int, now: float) -> bool:
        """Count the prompt's beginning; return True if many conversations share the name."""
        beginning = _beginning(read)
        if beginning is None:
            return False
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = _Beginnings(now)
            if len(self._by_name) > KEPT:
                self._by_name.popitem(last=False)
        else:
            self._by_name.move_to_end(name)
        if now - known.began <= STRETCH_S and beginning in known.seen and len(known.seen) <= most:
            return known.was_shared  # the beginning is known
        return known.add(beginning, most, now)


def _beginning(read: Prompt) -> int | None:
    """Return the part that all prompts of a conversation share, up to its first user message; None if unknown."""
    turns = read.document.get("messages") or read.document.get("input")
    if not isinstance(turns, list):
        return hash(read.rendered[:PLAIN_BYTES]) if len(read.rendered) >= PLAIN_BYTES else None
    for turn in turns:
        if type(turn) is dict and turn.get("role") == "user":
            content = turn.get("content")
            text = content if isinstance(content, str) else "".join(_texts(content))
            return xxhash.xxh3_64_intdigest(text[-SIGN_CHARS:].encode(), len(text))
    return None


def _texts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text
