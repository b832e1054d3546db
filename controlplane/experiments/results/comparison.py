"""Comparison of arms on the same requests: paired differences, the best arm by metric, expectations. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.experiments.results import stats
from controlplane.experiments.results.metrics import LATENCIES, METRICS, quantile_key
from controlplane.experiments.results.records import Record
from controlplane.experiments.results.summarize import CLASSES

Keyed = Mapping[tuple[int, int], Record]  # of one arm by (seed, request index)


def differences(arms: Mapping[str, Keyed]) -> list[dict[str, Any]]:
    """One row for each arm, baseline, class and latency quantile, over the requests that every arm answered."""
    with_records = {name: keyed for name, keyed in arms.items() if keyed}
    if len(with_records) < 2:
        return []
    rows = []
    for request_class in CLASSES:
        for latency in LATENCIES:
            columns = paired(with_records, request_class, latency)
            for (arm, base), quantiles in stats.differences(columns).items():
                rows += [
                    _row(arm, base, request_class, quantile_key(latency, share), difference, columns[base], share)
                    for share, difference in zip(stats.QUANTILES, quantiles, strict=True)
                ]
    return rows


def paired(arms: Mapping[str, Keyed], request_class: str, latency: str) -> dict[str, list[float]]:
    """A column of values for each arm; row i is the same request in all."""
    field = f"{latency}_ms"
    first = next(iter(arms.values()))
    keys = [
        key
        for key, record in sorted(first.items())
        if request_class in ("all", record.trace_class)
        and all(key in keyed and getattr(keyed[key], field) is not None for keyed in arms.values())
    ]
    return {name: [getattr(keyed[key], field) for key in keys] for name, keyed in arms.items()}


def _row(
    arm: str,
    base: str,
    request_class: str,
    metric: str,
    difference: stats.Difference,
    base_values: Sequence[float],
    share: float,
) -> dict[str, Any]:
    reference = stats.quantile(sorted(base_values), share)
    return {
        "arm": arm,
        "baseline": base,
        "class": request_class,
        "metric": metric,
        "difference": round(difference.difference, 3),
        "relative": round(difference.difference / reference, 4) if reference else None,
        "low": round(difference.low, 3),
        "high": round(difference.high, 3),
        "n": difference.n,
        "verdict": difference.verdict,
    }


def value_of(arm: Mapping[str, Any], request_class: str, metric: str) -> float | None:
    """The value of a metric in the results of one arm."""
    if METRICS[metric].per_class:
        value: float | None = arm["classes"][request_class].get(metric)
        return value
    return arm.get(metric)


def best(arms: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """class → metric → the arm with the best value; without metrics that fewer than two arms have, and without ties."""
    winners: dict[str, dict[str, str]] = {name: {} for name in CLASSES}
    for metric in METRICS.values():
        for request_class in CLASSES if metric.per_class else ("all",):
            values = {arm["name"]: value_of(arm, request_class, metric.key) for arm in arms}
            known = {name: value for name, value in values.items() if value is not None}
            if not metric.better or len(known) < 2 or len(set(known.values())) == 1:
                continue
            pick = min if metric.better == "lower" else max
            winners[request_class][metric.key] = pick(known, key=lambda name: known[name])
    return winners


def expectations(expect: Sequence[Mapping[str, Any]], arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each assertion with its value, for each arm that it covers. An unknown value fails."""
    return [
        _expectation(item, arm) for item in expect for arm in arms if not item.get("arm") or item["arm"] == arm["name"]
    ]


def _expectation(item: Mapping[str, Any], arm: Mapping[str, Any]) -> dict[str, Any]:
    value = value_of(arm, item["class"], item["metric"])
    low, high = item.get("min"), item.get("max")
    within = value is not None and (low is None or value >= low) and (high is None or value <= high)
    bounds = (("at least", low), ("at most", high))
    limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
    return {
        "arm": arm["name"],
        "class": item["class"],
        "metric": item["metric"],
        "value": value,
        "limits": limits,
        "passed": within,
    }
