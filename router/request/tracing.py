"""A request's trace, and spans that need their ids before the request ends."""

from dataclasses import dataclass, field

from router.spans import context
from router.spans.context import Parent

SERVER, QUEUE = 0, 1  # span numbers, from which ids are derived
_PREFILLS = 16  # first number of prefill spans
_ATTEMPTS = 1 << 16  # first number of attempts, four each


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """A prefill that was sent; its times are on the clock of `Call.started`."""

    id: str
    instance: str
    began: float
    ended: float
    error: str  # empty if it succeeded


@dataclass(slots=True)
class Tracing:
    trace: str
    parent: Parent | None
    sampled: bool
    state: str = ""  # tracestate, unchanged
    base: int = field(default_factory=context.new_base)
    prefills: list[PrefillSpan] = field(default_factory=list)
    attempt: int = 0  # attempt that the header names as the parent

    def id(self, number: int) -> str:
        return context.span_id(self.base, number)

    def of_attempt(self, attempt: int, part: int = 0) -> str:
        """Return a span id of the attempt. `part` is 0 for the attempt itself, 1 for its decision, 2 for its transfer,
        3 for its decode."""
        return self.id(_ATTEMPTS + 4 * attempt + part)

    def header(self, span: str) -> bytes:
        return context.header(self.trace, span, sampled=True)

    def for_attempt(self, attempt: int, lines: bytes) -> bytes:
        """Return header lines that name this attempt as the engine's parent."""
        if not self.sampled:
            return lines
        before, self.attempt = self.attempt, attempt
        return lines.replace(self.header(self.of_attempt(before)), self.header(self.of_attempt(attempt)))

    def for_prefill(self, lines: bytes) -> bytes:
        """Return header lines that name the prefill that begins now as the engine's parent."""
        if not self.sampled:
            return lines
        return lines.replace(self.header(self.of_attempt(self.attempt)), self.header(self._next_prefill()))

    def prefilled(self, instance: str, began: float, ended: float, error: str) -> None:
        self.prefills.append(PrefillSpan(self._next_prefill(), instance, began, ended, error))

    def _next_prefill(self) -> str:
        return self.id(_PREFILLS + len(self.prefills))
