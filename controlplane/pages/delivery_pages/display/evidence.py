"""The findings of the latest look as table rows: numbers, an interval on its axis, a verdict as text. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.common.figures import ms, whole
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.statistics.comparisons import LEAST_REQUESTS
from controlplane.traffic.deliveries.judge.verdicts import Harm, end_of, harm, margin
from controlplane.traffic.deliveries.plan.types import COMPARISONS, COUNTS, NEEDED
from controlplane.traffic.deliveries.results import SLIGHT, UNSURE
from controlplane.traffic.policies.selectors import listed
from fleet.counted import percent, times

METRICS: Mapping[str, str] = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "slow": "slow requests",
    "errors": "errors",
    "refused": "refusals",
    "breaker": "breaker",
    "arms": "size of the candidate's share",
    "tallies": "tallies of the routers",
    "routers": "routers",
    "shadow": "the shadow",
    "shadow.raised": "errors in deciding",
    "shadow.refused": "requests refused besides",
    "shadow.crowded": "fullest instance",
    "shadow.changed": "changed decisions",
    "pool.ttft_p90_ms": "TTFT p90 of the pool",
    "pool.ttft_p99_ms": "TTFT p99 of the pool",
    "pool.tpot_p90_ms": "TPOT p90 of the pool",
    "pool.errors_share": "errors of the pool",
    "pool.refused_share": "refusals of the pool",
}
CHECKS = ("breaker", "arms", "tallies", "routers")
VERDICTS: Mapping[str, tuple[str, str]] = {  # words and status shape
    "fail": ("fails", "failed"),
    "fine": ("no harm", "done"),
    "inconclusive": ("no harm found", "done"),
    "no_data": ("too few requests", "unseen"),
    "error": ("cannot be judged", "stale"),
    "not_judged": ("not judged", "stopped"),
    "deferred": ("left to a later step", "stopped"),
}
HARMS: Mapping[Harm, tuple[str, str]] = {  # text for a comparison that neither fails nor waits for data
    Harm.BEYOND: ("beyond the limit so far", "warning"),
    Harm.WORSE: (UNSURE, "warning"),
    Harm.SLIGHT: (SLIGHT, "done"),
    Harm.WITHIN: ("no harm", "done"),
    Harm.UNKNOWN: ("too few to tell", "unseen"),
}
ENOUGH, UNDECIDED = ("enough to go on", "done"), ("not decided yet", "running")


# Geometry of an interval on its axis, for the SVG that the server draws. Ratios (TTFT, TPOT, errors) have a logarithmic
# axis, shares a linear one. Positions are strings, because templates would add thousands separators to numbers.
WIDTH = 240.0  # width of the viewBox
EDGE = 8.0  # margin on both sides for the arrows of a truncated interval
RATIO_ENDS = (0.6, 1.6)  # smallest range of a ratio's axis
POINTS_ENDS = (-0.1, 0.1)  # smallest range of the axis of a difference between shares
BEYOND = 1.6  # the axis extends this far beyond its outermost mark


@dataclass(frozen=True, slots=True)
class Mark:
    at: str  # x in the viewBox
    label: str  # 1.10×, or +5 points
    anchor: str  # text anchor of the label, which keeps labels of close marks apart


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
    outside: str  # x of the limit beyond which the axis is red; empty without a limit
    outside_width: str


def ratio_axis(
    estimate: float, lower: float, upper: float, worse: float | None = None, fine: float | None = None
) -> RatioAxis:
    """Draw the axis of a ratio. `estimate`, `lower`, `upper` are ratios, where 1 means equal; `worse` and `fine` are
    relative differences."""
    outermost = max(1.0 + (worse or 0.0), 1.0 + (fine or 0.0))
    ends = (math.log(RATIO_ENDS[0]), max(math.log(RATIO_ENDS[1]), BEYOND * math.log(outermost)))
    marks = [None if share is None else (math.log1p(share), times(1 + share)) for share in (worse, fine)]
    return _axis(ends, tuple(map(_log, (estimate, lower, upper))), marks)


def points_axis(estimate: float, lower: float, upper: float, worse: float | None = None) -> RatioAxis:
    """Draw the axis of a difference between two shares; `worse` is a difference as well."""
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


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    title: str  # for example heavy TTFT
    estimate: str  # such as 1.04×
    interval: str  # for example 0.97 to 1.12×
    limits: str  # for example: fails above 1.10×, fine below 1.25×
    n: str
    cells: str
    verdict: str
    shape: str
    text: str
    axis: RatioAxis | None


def name(finding: GuardFinding) -> str:
    return title_of(finding.metric, finding.request_class)


def title_of(metric: str, request_class: str) -> str:
    """Return a title, for example heavy TTFT."""
    return f"{request_class} {METRICS.get(metric, metric)}".strip()


def undecided(findings: Sequence[GuardFinding]) -> tuple[str, ...]:
    """Return the required comparisons that are not fine yet."""
    waits = ("inconclusive", "no_data", "error")
    return tuple(dict.fromkeys(name(each) for each in findings if each.needed and each.verdict in waits))


def verdict(findings: Sequence[GuardFinding], *, past: bool = False) -> str:
    """Return one sentence for display above the table. `past` is True if the delivery has ended."""
    failed = [name(each) for each in findings if each.verdict == "fail"]
    if failed:
        return f"Failed: {listed(failed)}."
    fine = [name(each) for each in findings if each.needed and each.verdict == "fine"]
    left = [name(each) for each in findings if each.verdict == "deferred"]
    open_ = "not decided" if past else "not decided yet"
    said = ((fine, "enough to go on"), (undecided(findings), open_), (left, "left to a later step"))
    parts = [f"{listed(names)} {_were(len(names), past)} {word}" for names, word in said if names]
    return f"Nothing {'failed' if past else 'fails'}; {'; '.join(parts)}." if parts else ""


def _were(count: int, past: bool) -> str:
    return ("was" if count == 1 else "were") if past else ("is" if count == 1 else "are")


def rows(findings: Sequence[GuardFinding]) -> tuple[EvidenceRow, ...]:
    several = len({each.pool for each in findings}) > 1
    return tuple(_row(each, several) for each in sorted(findings, key=_rank))


def _rank(finding: GuardFinding) -> int:
    """Return the rank of a row: first failures, then guards that must be fine, then guards that can only fail, then
    checks of the sums."""
    if finding.verdict in ("fail", "error"):
        return 0
    return 1 if finding.needed else 3 if finding.metric in CHECKS else 2


def _title(finding: GuardFinding) -> str:
    title = name(finding)
    return title if finding.request_class else title[0].upper() + title[1:]


def _row(finding: GuardFinding, several_pools: bool) -> EvidenceRow:
    words, shape = words_of(finding)
    estimate, interval, limits, axis = _numbers(finding)
    return EvidenceRow(
        title=f"{_title(finding)}, {finding.pool}" if several_pools else _title(finding),
        estimate=estimate,
        interval=interval,
        limits=limits,
        n=whole(finding.n[0]),
        cells=whole(finding.cells[0]) if finding.metric in COMPARISONS else "",
        verdict=words,
        shape=shape,
        text=finding.text if axis is None or finding.verdict == "deferred" else _margin(finding),
        axis=axis,
    )


def words_of(finding: GuardFinding) -> tuple[str, str]:
    """Return the verdict's text and shape: no harm, too few to tell, or worse but not certainly beyond the limit."""
    if finding.verdict not in ("fine", "inconclusive"):
        return VERDICTS.get(finding.verdict, (finding.verdict, "unseen"))
    if finding.metric in COUNTS:
        return HARMS[_harm_of_counts(finding)]
    if finding.metric not in COMPARISONS:
        return _words_of_level(finding)
    where = harm(finding.lower, finding.upper, finding.worse or 0.0)
    if where is Harm.UNKNOWN and finding.verdict == "fine":
        return ENOUGH
    return HARMS[where]


def _words_of_level(finding: GuardFinding) -> tuple[str, str]:
    if finding.verdict == "fine" and finding.metric == "shadow.raised" and finding.n[0] < LEAST_REQUESTS:
        return HARMS[Harm.UNKNOWN]
    if finding.verdict == "fine" and finding.metric in CHECKS:
        return "as expected", "done"
    return UNDECIDED if finding.verdict == "inconclusive" and finding.needed else VERDICTS[finding.verdict]


def _harm_of_counts(finding: GuardFinding) -> Harm:
    """Return the harm shown by counts, which have no interval: with too few sessions, or with more hits than the ratio
    allows, nothing is certain."""
    if finding.candidate is None or finding.control is None or min(finding.n) < LEAST_REQUESTS:
        return Harm.UNKNOWN
    is_above = finding.candidate > finding.control * (finding.worse or 1.0)
    return Harm.WORSE if is_above else Harm.WITHIN


def _margin(finding: GuardFinding) -> str:
    if finding.estimate is None or (finding.lower is None and finding.upper is None):
        return finding.text
    return margin(finding.metric, finding.lower, finding.upper, finding.worse or 0.0, finding.fine)


def _numbers(finding: GuardFinding) -> tuple[str, str, str, RatioAxis | None]:
    metric, estimate = finding.metric, finding.estimate
    if estimate is not None and metric in NEEDED:
        return _ratio(finding, estimate)
    if estimate is not None and metric == "slow":
        return _points(finding, estimate)
    if metric in COUNTS and finding.candidate is not None and finding.control is not None:
        rates = f"{_share(finding.candidate)} against {_share(finding.control)}"
        return rates, "", f"fails above {finding.worse:g}×", None
    if estimate is not None:
        return _level(finding, estimate)
    return "", "", "", None


def _level(finding: GuardFinding, estimate: float) -> tuple[str, str, str, RatioAxis | None]:
    """Show a finding that is a level instead of a comparison: a share, or ms of the pool."""
    shown = ms if finding.metric.endswith("_ms") else _share
    low, high, worse = finding.lower, finding.upper, finding.worse
    interval = f"{shown(low)} to {shown(high)}" if low is not None and high is not None else ""
    limits = f"fails above {shown(worse)}" if worse is not None and finding.metric != "arms" else ""
    return shown(estimate), interval, limits, None


def _share(share: float) -> str:
    return percent(share, ".3g")


def _ratio(finding: GuardFinding, estimate: float) -> tuple[str, str, str, RatioAxis | None]:
    worse, fine, low, high = finding.worse or 0.0, finding.fine or 0.0, *_bounds(finding)
    limits = f"fails above {times(1 + worse)}, enough to go on below {times(1 + fine)}"
    axis = ratio_axis(1 + estimate, 1 + low, 1 + high, worse, fine)
    return times(1 + estimate), f"{_end(finding, low)} to {_end(finding, high, '×')}", limits, axis


def _end(finding: GuardFinding, end: float, unit: str = "") -> str:
    if math.isinf(end) and (end > 0 or finding.metric not in NEEDED):
        return "any" if end > 0 else "none"
    return end_of(finding.metric, end, finding.worse, finding.fine).replace("-", "−") + unit


def _points(finding: GuardFinding, estimate: float) -> tuple[str, str, str, RatioAxis | None]:
    worse, low, high = finding.worse or 0.0, *_bounds(finding)
    interval = f"{_end(finding, low)} to {_end(finding, high, ' points')}"
    limits = f"fails above {signed_points(worse)}"
    return signed_points(estimate), interval, limits, points_axis(estimate, low, high, worse)


def _bounds(finding: GuardFinding) -> tuple[float, float]:
    """Return the bounds; an absent bound is infinite, since JSON has no infinity."""
    low, high = finding.lower, finding.upper
    return -math.inf if low is None else low, math.inf if high is None else high
