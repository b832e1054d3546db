"""Slack-aware writes: blocks wait in HBM until the drives have time without reads. Pure, in closed form, because the
backlog falls linearly between two calls."""

from collections import deque
from dataclasses import dataclass

_NOTHING = 64.0  # bytes of a write that rounding may leave over


@dataclass(slots=True)
class PendingWrite:
    hashes: list[int]
    blocks: list[int]  # blocks of the pool, pinned until they are written
    left: float  # bytes left to write


class Backlog:
    def __init__(self, bytes_per_s: float, limit: float) -> None:
        """Create an empty backlog. No request is admitted beyond `limit` bytes."""
        self.bytes = 0.0
        self.most = 0.0
        self._rate = bytes_per_s
        self._limit = limit
        self._queue: deque[PendingWrite] = deque()
        self._keys: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    @property
    def is_full(self) -> bool:
        return self.bytes > self._limit + _NOTHING

    def add(self, write: PendingWrite) -> None:
        self._queue.append(write)
        self._keys.update(write.hashes)
        self.bytes += write.left
        self.most = max(self.most, self.bytes)

    def drain(self, seconds: float) -> list[PendingWrite]:
        """Write for the given time; return the writes that ended."""
        budget = seconds * self._rate
        done: list[PendingWrite] = []
        while self._queue:
            first = self._queue[0]
            if first.left > budget + _NOTHING:
                first.left -= budget
                self.bytes -= budget
                return done
            budget = max(0.0, budget - first.left)
            self.bytes -= first.left
            self._keys.difference_update(first.hashes)
            done.append(self._queue.popleft())
        self.bytes = 0.0
        return done

    def change_s(self) -> float | None:
        """Return the seconds until the backlog has drained far enough to admit a blocked request: until it is below its
        limit, or until blocks are free again. None without a backlog."""
        if not self._queue:
            return None
        return (self.bytes - self._limit if self.is_full else self._queue[0].left) / self._rate
