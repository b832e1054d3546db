"""Samples requests by their parent or at random, up to a limit per second."""

from router.spans.context import Parent
from router.spans.settings import SpanSettings

_LOW = (1 << 64) - 1


class Sampler:
    def __init__(self, settings: SpanSettings) -> None:
        self._by_parent = settings.sampler.startswith("parentbased_")
        kind = settings.sampler.removeprefix("parentbased_")
        self._bound = round({"always_on": 1.0, "always_off": 0.0}.get(kind, settings.ratio) * (_LOW + 1))
        self._rate = float(settings.per_s)
        self._left = self._rate
        self._at = 0.0

    def wanted(self, trace: str, parent: Parent | None) -> bool:
        """Decide like OpenTelemetry's samplers: the parent-based ones follow the parent, the others the trace's id."""
        if parent is not None and self._by_parent:
            return parent.sampled
        return self.by_chance(int(trace[16:], 16))

    def by_chance(self, low: int) -> bool:
        """Decide by the lower 64 bits of the trace's id."""
        return low < self._bound

    def allowed(self, now: float) -> bool:
        """Take one of this second's samples; `now` is monotonic seconds. Clients can request samples with
        `traceparent`, but not beyond this limit."""
        self._left = min(self._rate, self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
