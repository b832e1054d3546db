"""A circuit breaker per instance. Pure: time is an argument (s, any clock that only goes forward)."""


class Breaker:
    """Closed until `failures` in a row; then open for `open_s`; then one request tries the instance (half open).

    Back-pressure (429, 503) and cancellation are neither success nor failure.
    """

    __slots__ = ("_failed", "_opened_at", "_probing")

    def __init__(self) -> None:
        self._failed = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def state(self) -> str:
        if self._opened_at is None:
            return "closed"
        return "half open" if self._probing else "open"

    def refusal(self, now: float, open_s: float) -> str:
        """Why the instance takes no request; empty when it takes one."""
        if self._opened_at is None:
            return ""
        if self._probing:
            return "breaker half open: one request is trying it"
        left = self._opened_at + open_s - now
        return f"breaker open after {self._failed} failures in a row" if left > 0 else ""

    def begin(self) -> None:
        """A request is sent. It is the probe when the breaker is not closed."""
        if self._opened_at is not None:
            self._probing = True

    def answered(self) -> None:
        """A response has begun: that closes the breaker. Earlier failures stay counted until a response is whole."""
        if self._opened_at is not None:
            self._failed = 0
            self._opened_at = None
            self._probing = False

    def served(self) -> None:
        """A response is whole."""
        if self._opened_at is None:  # one that began before the breaker opened does not close it
            self._failed = 0

    def failed(self, now: float, failures: int) -> None:
        self._failed += 1
        if self._probing or self._failed >= failures:
            self._opened_at = now
        self._probing = False

    def neutral(self) -> None:
        self._probing = False
