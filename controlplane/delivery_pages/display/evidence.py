"""The findings of the latest look as table rows: numbers, an interval on its axis, a verdict in words. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.dashboard.templatetags.figures import ms, whole
from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.plan.types import COMPARISONS, COUNTS, NEEDED
from controlplane.delivery_pages.display.interval import (
    RatioAxis,
    points_axis,
    ratio_axis,
    signed_points,
)
from controlplane.policies.selectors import listed
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
VERDICTS: Mapping[str, tuple[str, str]] = {  # words, status shape
    "fail": ("fails", "failed"),
    "fine": ("fine", "done"),
    "inconclusive": ("not decided yet", "running"),
    "no_data": ("too few requests", "unseen"),
    "error": ("cannot be judged", "stale"),
    "not_judged": ("not judged", "stopped"),
    "deferred": ("left to a later step", "stopped"),
}


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    title: str  # heavy TTFT
    estimate: str  # 1.04×
    interval: str  # 0.97 to 1.12×
    limits: str  # fails above 1.10×, fine below 1.25×
    n: str
    cells: str
    verdict: str
    shape: str
    text: str
    axis: RatioAxis | None


def name(finding: GuardFinding) -> str:
    return title_of(finding.metric, finding.request_class)


def title_of(metric: str, request_class: str) -> str:
    """heavy TTFT"""
    return f"{request_class} {METRICS.get(metric, metric)}".strip()


def undecided(findings: Sequence[GuardFinding]) -> tuple[str, ...]:
    """Required comparisons that are not fine yet."""
    waits = ("inconclusive", "no_data", "error")
    return tuple(dict.fromkeys(name(each) for each in findings if each.needed and each.verdict in waits))


def verdict(findings: Sequence[GuardFinding]) -> str:
    """One sentence above the table."""
    failed = [name(each) for each in findings if each.verdict == "fail"]
    if failed:
        return f"Failed: {listed(failed)}."
    fine = [name(each) for each in findings if each.needed and each.verdict == "fine"]
    left = [name(each) for each in findings if each.verdict == "deferred"]
    said = ((fine, "fine"), (undecided(findings), "not decided yet"), (left, "left to a later step"))
    parts = [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {word}" for names, word in said if names]
    return f"Nothing fails; {'; '.join(parts)}." if parts else ""


def rows(findings: Sequence[GuardFinding]) -> tuple[EvidenceRow, ...]:
    several = len({each.pool for each in findings}) > 1
    return tuple(_row(each, several) for each in sorted(findings, key=_rank))


def _rank(finding: GuardFinding) -> int:
    """Order of rows: failures, guards that must be fine, guards that can only fail, checks of the sums."""
    if finding.verdict in ("fail", "error"):
        return 0
    return 1 if finding.needed else 3 if finding.metric in CHECKS else 2


def _title(finding: GuardFinding) -> str:
    title = name(finding)
    return title if finding.request_class else title[0].upper() + title[1:]


def _row(finding: GuardFinding, several_pools: bool) -> EvidenceRow:
    words, shape = VERDICTS.get(finding.verdict, (finding.verdict, "unseen"))
    if finding.verdict == "inconclusive" and not finding.needed:
        words, shape = "nothing found", "done"
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
        text=finding.text if axis is None or finding.verdict == "deferred" else "",
        axis=axis,
    )


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
    """A finding with one level instead of a comparison: a share, or ms of the pool."""
    shown = ms if finding.metric.endswith("_ms") else _share
    low, high, worse = finding.lower, finding.upper, finding.worse
    interval = f"{shown(low)} to {shown(high)}" if low is not None and high is not None else ""
    limits = f"fails above {shown(worse)}" if worse is not None and finding.metric != "arms" else ""
    return shown(estimate), interval, limits, None


def _share(share: float) -> str:
    return percent(share, ".3g")


def _ratio(finding: GuardFinding, estimate: float) -> tuple[str, str, str, RatioAxis | None]:
    worse, fine, low, high = finding.worse or 0.0, finding.fine or 0.0, *_bounds(finding)
    limits = f"fails above {times(1 + worse)}, fine below {times(1 + fine)}"
    axis = ratio_axis(1 + estimate, 1 + low, 1 + high, worse, fine)
    return times(1 + estimate), f"{factor(low)} to {factor(high, '×')}", limits, axis


def factor(difference: float, unit: str = "") -> str:
    return "any" if math.isinf(difference) and difference > 0 else f"{max(0.0, 1 + difference):.2f}{unit}"


def _points(finding: GuardFinding, estimate: float) -> tuple[str, str, str, RatioAxis | None]:
    worse, low, high = finding.worse or 0.0, *_bounds(finding)
    interval = f"{signed_points(low, '')} to {signed_points(high)}"
    limits = f"fails above {signed_points(worse)}"
    return signed_points(estimate), interval, limits, points_axis(estimate, low, high, worse)


def _bounds(finding: GuardFinding) -> tuple[float, float]:
    """The bounds; an absent one is infinite, since JSON has no infinity."""
    low, high = finding.lower, finding.upper
    return -math.inf if low is None else low, math.inf if high is None else high
