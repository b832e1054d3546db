"""Checks expectations against the arms and the SLO of their experiment. Pure."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.start.body import ExpectIn
from router.contract.problem import Problem

_PAIRED = [key for key, metric in METRICS.items() if metric.paired]
_NEED_SLO = [key for key, metric in METRICS.items() if metric.needs_slo]


def check(items: Sequence[ExpectIn], arms: Collection[str], has_slo: bool) -> list[Problem]:
    """Return the problems of expectations. `arms` is empty if an arm is invalid, which is reported separately."""
    return [
        Problem(f"expect.{index}.{field}", getattr(item, field), message)
        for index, item in enumerate(items)
        for field, holds, message in _rules(arms, has_slo)
        if not holds(item)
    ]


def _rules(arms: Collection[str], has_slo: bool) -> tuple[tuple[str, Callable[[ExpectIn], Any], str], ...]:
    named = f"arms are {', '.join(sorted(arms))}"
    return (
        ("metric", lambda item: item.metric in METRICS, f"allowed: {', '.join(METRICS)}"),
        (
            "metric",
            lambda item: has_slo or item.metric not in _NEED_SLO,
            "needs `slo`, which the experiment does not set",
        ),
        (
            "metric",
            lambda item: not _by_interval(item) or item.metric not in METRICS or item.metric in _PAIRED,
            f"has no interval; with relative_to or confidence, allowed: {', '.join(_PAIRED)}",
        ),
        ("arm", lambda item: not item.arm or not arms or item.arm in arms, named),
        ("relative_to", lambda item: not item.relative_to or not arms or item.relative_to in arms, named),
        ("relative_to", lambda item: not item.relative_to or item.relative_to != item.arm, "needs another arm"),
        ("max", lambda item: item.relative_to or _any(item.min, item.max), "needs a min, a max, or both"),
        (
            "max",
            lambda item: not item.relative_to or not _any(item.min, item.max),
            "not with relative_to, but max_ratio",
        ),
        (
            "max_ratio",
            lambda item: not item.relative_to or _any(item.min_ratio, item.max_ratio),
            "relative_to needs a min_ratio, a max_ratio, or both",
        ),
        (
            "max_ratio",
            lambda item: item.relative_to or not _any(item.min_ratio, item.max_ratio),
            "needs relative_to: the arm to which it is a ratio",
        ),
    )


def _by_interval(item: ExpectIn) -> bool:
    return bool(item.relative_to or item.confidence)


def _any(*limits: float | None) -> bool:
    return any(limit is not None for limit in limits)
