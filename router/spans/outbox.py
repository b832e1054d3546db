"""Encoded spans waiting for the collector, and counts of outcomes. Pure; used by one thread at a time."""

from collections import Counter, deque

from router.spans import otlp

LATER = (429, 502, 503, 504)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Outbox:
    def __init__(self, most: int, batch: int, results: Counter[str]) -> None:
        self._most = most
        self._batch = batch
        self._waiting: deque[bytes] = deque()
        self._under_way: list[bytes] = []
        self._pause_s = FIRST_PAUSE_S
        self.results = results
        self.not_before = 0.0  # s, monotonic: end of a pause after an error, or requested by the collector

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, span: bytes) -> None:
        self._waiting.append(span)
        self._drop_oldest()

    def take(self, now: float) -> list[bytes]:
        """Return the next export, or nothing if none is due; `answered` or `unanswered` ends it."""
        if now < self.not_before or self._under_way:
            return []
        self._under_way = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
        return self._under_way

    def answered(self, status: int, answer: bytes, retry_after: str, now: float) -> None:
        if status in LATER:
            self._again(float(retry_after) if retry_after.isdecimal() and len(retry_after) < 6 else None, now)
            return
        count = len(self._under_way)
        if 200 <= status < 300:
            rejected = min(count, otlp.rejected(answer))
            self.results["sent"] += count - rejected
            self.results["rejected"] += rejected
        else:
            self.results["failed"] += count
        self._under_way, self._pause_s = [], FIRST_PAUSE_S

    def unanswered(self, now: float) -> None:
        self._again(None, now)

    def _again(self, after_s: float | None, now: float) -> None:
        """Retry the same spans later: the delay doubles each time, unless the collector gives a time."""
        self.not_before = now + (self._pause_s if after_s is None else after_s)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        self._waiting.extendleft(reversed(self._under_way))
        self._under_way = []
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self._waiting and len(self._waiting) + len(self._under_way) > self._most:
            self._waiting.popleft()
            self.results["dropped"] += 1
