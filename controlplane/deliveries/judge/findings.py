"""What the judge finds: one verdict for each guard. Pure."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["fail", "fine", "inconclusive", "no_data", "error", "not_judged", "deferred"]
Effect = Literal["abort", "pause"]


@dataclass(frozen=True, slots=True)
class GuardFinding:
    """Of one guard, for one class where it has classes. Shares and relative differences are 0–1."""

    metric: str
    verdict: Verdict
    text: str  # one sentence
    request_class: str = ""
    pool: str = ""
    estimate: float | None = None  # candidate against control: relative for ttft and tpot, points for slow, else a rate
    lower: float | None = None  # `estimate` with the worst luck that α allows
    upper: float | None = None
    worse: float | None = None  # fails when `lower` is above
    fine: float | None = None  # fine when `upper` is not above
    candidate: float | None = None  # level of each arm, in the metric's unit
    control: float | None = None
    n: tuple[int, int] = (0, 0)  # requests, or sessions of counts: candidate, control
    cells: tuple[float, float] = (0.0, 0.0)  # effective: candidate, control
    e_value: float | None = None  # of counts: fails at 1/α
    needed: bool = False  # a step passes only when it is fine
    effect: Effect = "abort"  # of a failure

    def as_dict(self) -> dict[str, Any]:
        found = {name: _rounded(value) for name, value in asdict(self).items()}
        found["class"] = found.pop("request_class")
        return found


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) < 1e300 else None
    return value
