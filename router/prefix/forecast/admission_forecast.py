"""When requests get their turn on an instance whose KV cache is full, and how much it evicts until then.

A request is admitted when its whole prompt has room beside those that run, in the order of arrival (vLLM V1 with
`scheduler_reserve_full_isl`, its default). Until then those that run go on growing, all at the same pace, and give
their blocks back when they end, the one with the least left first. What is given back can still be hit, but for the
block of each request that is not full: such blank ones are taken before anything is evicted.
"""


class AdmissionForecast:
    """All in blocks, of which the expected ones are fractions."""

    __slots__ = ("_blank", "_running", "evicted", "free")

    def __init__(self, free: float, blank: float) -> None:
        """`free`: what no request that runs uses; `blank`: of it, what nothing is kept in."""
        self.free = free
        self.evicted = 0.0
        self._blank = blank
        self._running: list[tuple[float, float]] = []  # (what the answer will grow yet, what its end gives back)

    def copy(self) -> "AdmissionForecast":
        other = AdmissionForecast(self.free, self._blank)
        other.evicted, other._running = self.evicted, self._running[:]
        return other

    def run(self, need: float, left: float, own: float) -> None:
        """One runs that takes so much now, whose answer grows so much, and which gives back `own` and that growth."""
        self._take(need)
        self._running.append((left, own))

    def wait(self, need: float) -> None:
        """Until so many are free, or nobody runs."""
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
