"""Forecast of when an instance with a full KV cache admits requests, and how much it evicts until then.

Requests are admitted in the order of arrival, once the whole prompt fits beside the running ones (vLLM V1 with
`scheduler_reserve_full_isl`, its default). Until then the running requests grow, all at the same rate, and return their
blocks when they end, the shortest remainder first. Returned blocks can still be hit, except each request's partial
block: such blank blocks are reused before anything is evicted.
"""


class AdmissionForecast:
    """A forecast in blocks; expected values are fractions."""

    __slots__ = ("_blank", "_running", "evicted", "free")

    def __init__(self, free: float, blank: float) -> None:
        """`free`: blocks that no running request uses; `blank`: free blocks without content."""
        self.free = free
        self.evicted = 0.0
        self._blank = blank
        self._running: list[tuple[float, float]] = []  # (remaining growth of the answer, blocks returned at its end)

    def copy(self) -> "AdmissionForecast":
        other = AdmissionForecast(self.free, self._blank)
        other.evicted, other._running = self.evicted, self._running[:]
        return other

    def run(self, need: float, left: float, own: float) -> None:
        """Start a request: it takes `need` now, its answer grows by `left`, its end returns `own` and that growth."""
        self._take(need)
        self._running.append((left, own))

    def wait(self, need: float) -> None:
        """Wait until `need` blocks are free, or nothing runs."""
        while self.free < need and self._running:
            first, own = min(self._running)
            self._take(first * len(self._running))
            self._running.remove((first, own))
            self._running = [(left - first, own + first) for left, own in self._running]
            self.free += own + first + 1
            self._blank += 1

    def _take(self, blocks: float) -> None:
        self.free -= blocks
        self._blank -= blocks
        if self._blank < 0:
            self.evicted -= self._blank
            self._blank = 0.0
