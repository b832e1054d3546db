"""Tells names that one conversation has from those that many share, as an application's own name in `user`.

By the beginnings of their prompts, counted by name over a stretch of time: a session has few, however many requests.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from router.tokenize.prompt import Prompt

MOST = 64  # beginnings of one session in a stretch: an agent starts others of its own, and cuts its history
MOST_OF_MANY = 16  # conversations under a name that may stand for a person or an application
STRETCH_S = 600
KEPT = 1_024  # names; the busiest stay
SIGN_CHARS = 1_024  # last characters of a beginning, which separate it from others: instructions come first
PLAIN_BYTES = 256  # bytes of a prompt without messages


class _Beginnings:
    __slots__ = ("began", "seen", "was_shared")

    def __init__(self, now: float) -> None:
        self.began = now
        self.seen: set[int] = set()
        self.was_shared = False  # in the stretch before

    def add(self, beginning: int, most: int, now: float) -> bool:
        """True when they are more than `most`."""
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
        """Count the prompt among those of the name."""
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
            return known.was_shared  # one more of the same
        return known.add(beginning, most, now)


def _beginning(read: Prompt) -> int | None:
    """What every prompt of a conversation has in common: the first message of its user; None where nothing says."""
    turns = read.document.get("messages") or read.document.get("input")
    if not isinstance(turns, list):
        return hash(read.rendered[:PLAIN_BYTES]) if len(read.rendered) >= PLAIN_BYTES else None
    for turn in turns:
        if isinstance(turn, dict) and turn.get("role") == "user":
            content = turn.get("content")
            text = content if isinstance(content, str) else "".join(_texts(content))
            return hash((len(text), text[-SIGN_CHARS:]))
    return None


def _texts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text
