"""Geometry of an interval on its axis, for the SVG that the server draws. Pure.

Ratios (TTFT, TPOT, errors) have a logarithmic axis, shares a linear one. Positions are strings, since templates would
add thousands separators to numbers.
"""

import math
from dataclasses import dataclass

from fleet.counted import times

WIDTH = 240.0  # width of the viewBox
EDGE = 8.0  # margin on both sides for the arrows of a cut interval
RATIO_ENDS = (0.6, 1.6)  # smallest range of a ratio's axis
POINTS_ENDS = (-0.1, 0.1)  # smallest range of the axis of a difference between shares
BEYOND = 1.6  # the axis reaches this far beyond its outermost mark


@dataclass(frozen=True, slots=True)
class Mark:
    at: str  # x in the viewBox
    label: str  # 1.10×, or +5 points
    anchor: str  # text anchor of the label: keeps labels of close marks apart


@dataclass(frozen=True, slots=True)
class RatioAxis:
    same: str  # x where both arms are equal
    worse: Mark | None
    fine: Mark | None
    at: str  # x of the estimate
    low: str
    high: str
    cut_low: bool  # the interval continues beyond the axis
    cut_high: bool
    outside: str  # x of the limit from which the axis is red; empty without a limit
    outside_width: str


def ratio_axis(
    estimate: float, lower: float, upper: float, worse: float | None = None, fine: float | None = None
) -> RatioAxis:
    """Draw the axis of a ratio. `estimate`, `lower`, `upper` are ratios, 1 meaning equal; `worse` and `fine` are
    relative differences."""
    outermost = max(1.0 + (worse or 0.0), 1.0 + (fine or 0.0))
    ends = (math.log(RATIO_ENDS[0]), max(math.log(RATIO_ENDS[1]), BEYOND * math.log(outermost)))
    marks = [None if share is None else (math.log1p(share), times(1 + share)) for share in (worse, fine)]
    return _axis(ends, tuple(map(_log, (estimate, lower, upper))), marks)


def points_axis(estimate: float, lower: float, upper: float, worse: float | None = None) -> RatioAxis:
    """Draw the axis of a difference between two shares; `worse` is such a difference, too."""
    ends = (POINTS_ENDS[0], max(POINTS_ENDS[1], BEYOND * (worse or 0.0)))
    return _axis(ends, (estimate, lower, upper), [None if worse is None else (worse, signed_points(worse)), None])


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _axis(ends: tuple[float, float], values: tuple[float, ...], marks: list[tuple[float, str] | None]) -> RatioAxis:
    def place(value: float) -> float:
        inside = min(max(value, ends[0]), ends[1])
        return EDGE + (inside - ends[0]) / (ends[1] - ends[0]) * (WIDTH - 2 * EDGE)

    def mark(at: float, label: str) -> Mark:
        right = any(other is not None and other[0] < at for other in marks)
        return Mark(f"{place(at):.1f}", label, "start" if right else "end")

    estimate, lower, upper = values
    worse, fine = (None if each is None else mark(*each) for each in marks)
    same, at, low, high = (f"{place(value):.1f}" for value in (0.0, estimate, lower, upper))
    begins = max((each[0] for each in marks if each is not None), default=None)
    outside = ("", "") if begins is None else (f"{place(begins):.1f}", f"{WIDTH - place(begins):.1f}")
    return RatioAxis(same, worse, fine, at, low, high, lower < ends[0], upper > ends[1], *outside)


def signed_points(share: float, unit: str = " points") -> str:
    if math.isinf(share):
        return "any" if share > 0 else "none"
    return f"{share * 100:+.3g}{unit}".replace("-", "−")
