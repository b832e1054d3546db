"""The instance of each session. This is local to the router; changes are collected and later written to Redis for other
routers."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

KEPT = 100_000  # sessions per pool
UNNAMED = "~"  # prefix of session ids derived from the prompt
CONTINUED = ""  # replaces the session at a prompt's last chunk after a later prompt has continued it
REFRESH_SHARE: Final = 4  # an unchanged binding is rewritten after a quarter of its time to live


@dataclass(slots=True)
class Bound:
    instance: str
    used_at: float  # s, Unix
    written_at: float  # Unix time of the last write for other routers
    history_tokens: int = 0  # prompt + output of the previous request; 0 if another router served it


class Affinity:
    def __init__(self) -> None:
        self._bound: OrderedDict[str, Bound] = OrderedDict()
        self._tails: OrderedDict[int, str] = OrderedDict()
        self.changed: dict[str, tuple[str, int]] = {}  # session: (instance, ttl in s), not yet written

    def __len__(self) -> int:
        return len(self._bound)

    @property
    def unnamed(self) -> int:
        """Conversations without a name, by the last chunk of their latest prompt; at most KEPT."""
        return len(self._tails)

    def get(self, session: str, now: float, ttl_s: int) -> Bound | None:
        bound = self._bound.get(session)
        if bound is None or now - bound.used_at > ttl_s:
            return None
        return bound

    def bind(self, session: str, instance: str, now: float, ttl_s: int, *, shared: bool = True) -> None:
        """Bind the session to this instance. `shared` is True if other routers know the session by the same name."""
        bound = self._bound.get(session)
        moved = bound is None or bound.instance != instance
        if bound is None:
            bound = self._bound[session] = Bound(instance, now, now)
            self._trim()
        else:
            bound.instance, bound.used_at = instance, now
            self._bound.move_to_end(session)
        if shared and (moved or now - bound.written_at > ttl_s / REFRESH_SHARE):
            bound.written_at = now
            self.changed[session] = (instance, ttl_s)

    def learned(self, session: str, instance: str, now: float) -> None:
        """Adopt a binding that another router made."""
        bound = self._bound.get(session)
        if bound is None:
            self._bound[session] = Bound(instance, now, now)
            self._trim()
        else:
            bound.instance, bound.used_at, bound.written_at = instance, now, now

    def heard(self, session: str | None, instance: str, hashes: Sequence[int], now: float) -> None:
        """Adopt the last chunk of a prompt sent by another router, so that it identifies the session here as well."""
        if session is None:
            return
        self.learned(session, instance, now)
        if hashes and session.startswith(UNNAMED):
            self._remember(hashes[-1], session)

    def taken_up(self, session: str, instance: str, now: float) -> None:
        """Adopt a binding from Redis, unless a newer one is known."""
        if session not in self._bound:
            self.learned(session, instance, now)

    def answered(self, session: str, history_tokens: int) -> None:
        bound = self._bound.get(session)
        if bound is not None:
            bound.history_tokens = history_tokens

    def take_changed(self, most: int) -> dict[str, tuple[str, int]]:
        """Remove and return the oldest changes, to be written now."""
        return {session: self.changed.pop(session) for session in list(islice(self.changed, most))}

    def give_back(self, changed: dict[str, tuple[str, int]]) -> None:
        """Put back changes that could not be written; newer ones win. At most KEPT."""
        for session, binding in changed.items():
            self.changed.setdefault(session, binding)
        if len(self.changed) > KEPT:
            self.changed = dict(list(self.changed.items())[-KEPT:])

    def _trim(self) -> None:
        if len(self._bound) > KEPT:
            self._bound.popitem(last=False)

    # Requests without a session id: the last chunk of its previous prompt identifies a conversation

    def session_of_calls(self, hashes: Sequence[int], marks: Iterator[int]) -> str | None:
        """Return the session whose prompt had the same `marks` of calls, for a prompt that was modified between two
        turns. The first mark is that of its latest call, the second that of its end. Each mark is continued once, like
        a prompt, because examples and forks also have calls in common.
        """
        tails, session, call = self._tails, self.session_of_chain(hashes), next(marks, None)
        if call is None:
            return session
        end = next(marks)
        if end in tails:
            if tails[end] != session:  # not a repetition, but another conversation with these calls
                for mark in (call, end):
                    self._remember(mark, CONTINUED)
            return session
        known = next(filter(tails.__contains__, marks), None)
        if known is not None:
            session = tails[known] or session
            self._remember(known, CONTINUED)
        if session is not None:
            new = (mark for mark in (call, end) if mark not in tails)
            for mark in (*new, *hashes[-1:]):
                self._remember(mark, session)
        return session

    def session_of_chain(self, hashes: Sequence[int]) -> str | None:
        """Return the session whose previous prompt is the longest prefix of this one; a new name if there is none. A
        prompt is continued once. Later prompts with the same beginning only share its instructions: they get a new
        name, or none if they end at the same point.
        """
        if not hashes:
            return None
        tails, last = self._tails, hashes[-1]
        tail = self._known(hashes)
        session = None if tail is None else tails[tail]
        if tail == last and session == CONTINUED:
            return None
        if session and tail is not None and tail != last:
            tails[tail] = CONTINUED
        session = session or f"{UNNAMED}{last:x}"
        self._remember(last, session)
        return session

    def continues(self, hashes: Sequence[int]) -> int:
        """Count the chunks of the known conversation that this prompt continues, without changing any state."""
        tail = self._known(hashes)
        return 0 if tail is None or self._tails[tail] == CONTINUED else hashes.index(tail) + 1

    def _known(self, hashes: Sequence[int]) -> int | None:
        """Return the last chunk at which a known prompt ends. Long prompts have thousands of chunks, so the loop calls
        no function."""
        return next(filter(self._tails.__contains__, reversed(hashes)), None)

    def _remember(self, tail: int, session: str) -> None:
        self._tails[tail] = session
        self._tails.move_to_end(tail)
        if len(self._tails) > KEPT:
            self._tails.popitem(last=False)
