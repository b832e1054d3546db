"""A circuit breaker per instance. Pure: time is an argument (s, any clock that only goes forward)."""

NO_PROBE = 0


class Breaker:
    """Closed until `failures` in a row; then open for `open_s`; then one request tries the instance (half open).

    Back-pressure (429, 503) and cancellation are neither success nor failure.
    """

    __slots__ = ("_failed", "_probe", "_probes", "opened_at")

    def __init__(self) -> None:
        self._failed = 0
        self.opened_at: float | None = None  # None: closed
        self._probe = NO_PROBE  # the number of the request that is trying the instance
        self._probes = 0

    @property
    def state(self) -> str:
        if self.opened_at is None:
            return "closed"
        return "half open" if self._probe else "open"

    def refusal(self, now: float, open_s: float) -> str:
        """Why the instance takes no request; empty when it takes one."""
        if self.opened_at is None:
            return ""
        if self._probe:
            return "breaker half open: one request is trying it"
        left = self.opened_at + open_s - now
        return f"breaker open after {self._failed} failures in a row" if left > 0 else ""

    def begin(self) -> int:
        """A request is sent: the number of its probe, or NO_PROBE. Every request ends with `end` of that number."""
        if self.opened_at is None or self._probe:
            return NO_PROBE
        self._probes += 1
        self._probe = self._probes
        return self._probe

    def answered(self) -> None:
        """A response has begun: that closes the breaker. Earlier failures stay counted until a response is whole."""
        if self.opened_at is not None:
            self._failed = 0
            self.opened_at = None
            self._probe = NO_PROBE

    def served(self) -> None:
        """A response is whole."""
        if self.opened_at is None:  # one that began before the breaker opened does not close it
            self._failed = 0

    def failed(self, now: float, failures: int) -> None:
        """A failure of any request: an open breaker stays open for as long again."""
        self._failed += 1
        if self.opened_at is not None or self._failed >= failures:
            self.opened_at = now

    def end(self, probe: int) -> None:
        """The request is over, whatever became of it. Only its own probe ends with it."""
        if probe and probe == self._probe:
            self._probe = NO_PROBE
