"""A circuit breaker per instance. Pure: time is an argument (s, any monotonic clock)."""

import math
from collections.abc import Callable
from typing import Final

NO_PROBE: Final = 0
MOST_DISPUTED = 3  # failures undone before the next served answer, as a multiple of the breaker's failures
DOUBTED_AFTER = 3  # consecutive requests rejected as wrong
SPARED_S = 60.0  # how long failures of several tenants may last before they open the last breaker


class Breaker:
    """Closed until `failures` in a row; then open for `open_s`; then one request tries the instance (half open).

    Back-pressure (429, 503) and cancellation are neither success nor failure. Failures of one tenant's requests do not
    open the last closed breaker of a pool; those of several tenants open it only if the instance has served nobody for
    SPARED_S.
    """

    __slots__ = ("_disputed", "_failed", "_probe", "_probes", "_rejected", "_several", "_since", "_tenant", "opened_at")

    def __init__(self) -> None:
        self._failed = 0
        self._disputed = 0  # failures undone since an answer was served
        self._rejected = 0  # consecutive requests rejected as wrong
        self._tenant = ""  # tenant of the first consecutive failure
        self._several = False  # True if other tenants' requests failed, too
        self._since = 0.0  # time of the first consecutive failure
        self.opened_at: float | None = None  # None while closed
        self._probe = NO_PROBE  # number of the request that is trying the instance
        self._probes = 0

    @property
    def failures(self) -> int:
        """Return the consecutive failures."""
        return self._failed

    @property
    def state(self) -> str:
        if self.opened_at is None:
            return "closed"
        return "half open" if self._probe else "open"

    def refusal(self, now: float, open_s: float) -> str:
        """Return why the instance takes no request; empty if it takes one."""
        if self.opened_at is None:
            return ""
        if self._probe:
            return "breaker half open: one request is trying it"
        left = self.opened_at + open_s - now
        return f"breaker open after {self._failed} failures in a row" if left > 0 else ""

    def begin(self) -> int:
        """Note that a request is sent; return its probe number, or NO_PROBE, for the final `end`."""
        if self.opened_at is None or self._probe:
            return NO_PROBE
        self._probes += 1
        self._probe = self._probes
        return self._probe

    def answered(self, *, computed: bool = True) -> None:
        """Close the breaker, because a response has begun. Earlier failures count until a response is complete. With
        `computed`, the model generated the response; otherwise a single further failure opens the breaker again.
        """
        if self.opened_at is not None:
            self._failed = 0 if computed else self._failed
            self.opened_at = None
            self._probe = NO_PROBE

    def served(self) -> None:
        """Note a complete response."""
        self._disputed = self._rejected = 0
        if self.opened_at is None:  # a response begun before the breaker opened does not close it
            self._failed = 0

    def rejected(self) -> None:
        """Note that the instance rejected a request as wrong."""
        self._rejected += 1

    @property
    def is_doubted(self) -> bool:
        """Return whether this number of consecutive rejections suggests that the instance is at fault."""
        return self._rejected >= DOUBTED_AFTER

    def failed(self, now: float, failures: int, tenant: str = "", spares: Callable[[bool], bool] | None = None) -> None:
        """Count a failure of a request of `tenant`. An open breaker stays open for the same time again, unless others
        need the instance and it failed only for this tenant, or for a short time. `spares` returns whether others need
        it, given whether several tenants' requests failed; it is called only if that matters.
        """
        if not self._failed:
            self._tenant, self._several, self._since = tenant, False, now
        self._several = self._several or tenant != self._tenant
        self._failed += 1
        if self.opened_at is None and self._failed < failures:
            return
        is_early = not self._several or now - self._since < SPARED_S
        is_spared = is_early and spares is not None and spares(self._several)
        if self.opened_at is not None or not is_spared:
            self.opened_at = -math.inf if is_spared else now

    @property
    def opened_by(self) -> str:
        """Return the tenant whose failures alone opened the breaker; empty if it is closed or several tenants' requests
        failed.
        """
        return "" if self.opened_at is None or self._several else self._tenant

    def reconsider(self, tenant: str | None) -> bool:
        """Allow a try at once if the breaker was opened only by failures of one other tenant."""
        if not self.opened_by or self._probe or self._tenant == tenant:
            return False
        self.opened_at = -math.inf
        return True

    def take_back(self, failures: int, count: int = 1) -> bool:
        """Undo the latest `count` failures, which one request caused. Return False if they stay because too many have
        already been undone."""
        if self._disputed >= MOST_DISPUTED * failures:
            return False
        self._disputed += 1
        self._failed = max(0, self._failed - count)
        if self.opened_at is not None:
            self.opened_at = None if self._failed < failures else -math.inf  # an open breaker may be tried at once
        return True

    def end(self, probe: int) -> None:
        """End a request, whatever its result. Only the request that started the probe ends it."""
        if probe and probe == self._probe:
            self._probe = NO_PROBE
