"""The history as Live and the wall draw it, computed at most once in 2 s for all pages and sockets that request the
same range. An hour of 1,000 instances costs about 0.5 s of CPU time, and each page requests it twice: directly and
through its socket.
"""

import time
from functools import cached_property
from threading import Lock

import orjson

from controlplane.live.dashboard import history
from controlplane.live.dashboard.step import rows
from fleet.redis import connect

KEPT_S = 2.0


class Charted:
    def __init__(self, at: float, made: history.ChartedHistory) -> None:
        self.at = at  # Unix s
        self.history = made

    @cached_property
    def text(self) -> str:
        """Return the history as JSON."""
        return orjson.dumps(self.history).decode()


class ChartedRanges:
    """Charted histories by length. If several threads ask for one at the same time, one thread reads it and the others
    wait."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[int, Charted] = {}

    def newest(self, seconds: int) -> Charted:
        """Return the newest history of this length. Raise redis.RedisError."""
        with self._lock:
            now = time.time()
            found = self._kept.get(seconds)
            if found is None or not now - KEPT_S <= found.at <= now:
                made = history.charted(rows(connect(), now, seconds), now, seconds)
                found = self._kept[seconds] = Charted(now, made)
            return found

    def forget(self) -> None:
        self._kept.clear()


ranges = ChartedRanges()
