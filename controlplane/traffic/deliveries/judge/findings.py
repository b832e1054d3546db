"""The judge's findings: one verdict for each guard. Pure."""

from typing import Any, Literal

import msgspec
from msgspec import Struct, field

Verdict = Literal["fail", "fine", "inconclusive", "no_data", "error", "not_judged", "deferred"]
Effect = Literal["abort", "pause"]


class GuardFinding(Struct, frozen=True):
    """The finding of one guard, for one class if the guard has classes. Shares and relative differences are 0–1."""

    metric: str
    verdict: Verdict
    text: str  # one sentence
    pool: str = ""
    # Candidate against control: relative for ttft and tpot, in points for slow, otherwise a rate
    estimate: float | None = None
    lower: float | None = None  # confidence limits of `estimate`, at α
    upper: float | None = None
    worse: float | None = None  # the guard fails if `lower` is above this
    fine: float | None = None  # the guard is fine if `upper` is not above this
    candidate: float | None = None  # level of each arm, in the metric's unit
    control: float | None = None
    n: tuple[int, int] = (0, 0)  # requests, or sessions for counts: candidate, control
    cells: tuple[float, float] = (0.0, 0.0)  # effective cells: candidate, control
    e_value: float | None = None  # only for guards of counts; the guard fails at 1/α
    needed: bool = False  # True if a step passes only while this guard is fine
    effect: Effect = "abort"  # effect of a failure
    request_class: str = field(name="class", default="")

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a look stores it."""
        return dict(rounded(msgspec.to_builtins(self)))


class LookFacts(Struct, frozen=True):
    """The data that a look has read, and the time that reading took."""

    routers: int = 0
    tallies: int = 0
    guards: int = 0
    ms: float = 0.0


def rounded(value: Any) -> Any:
    """Round for JSON: five digits, no infinite numbers."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) < 1e300 else None
    return value
