"""Compares arms on the same requests: paired differences, the best arm by metric. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from controlplane.evidence.experiments.results.metrics import MAIN, METRICS, quantile_key
from controlplane.evidence.experiments.results.records import LATENCIES, Slo
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.experiments.results.statistics.pairs import (
    Keyed,
    latency_columns,
    ratio_columns,
    ratio_difference,
    ratio_of_ratios,
    sent_to_any,
)
from controlplane.evidence.experiments.results.statistics.stats import Difference
from controlplane.evidence.experiments.results.summarize import CLASSES
from controlplane.evidence.experiments.results.types import ArmResults, DifferenceBounds, DifferenceRow, Interval

Ends = tuple[float, float]
Found = tuple[str, str, str, Difference, float]  # (arm, baseline, metric, difference, value of the baseline)


def differences(arms: Mapping[str, Keyed], slo: Slo, beat: Callable[[], None]) -> list[DifferenceRow]:
    """Return a row for each arm, baseline, class and metric, over the requests that were sent in every arm. `beat` is
    called every second or two."""
    with_records = {name: keyed for name, keyed in arms.items() if keyed}
    if len(with_records) < 2:
        return []
    sent = {name: sent_to_any(with_records, name) for name in CLASSES}
    return [
        _row(request_class, sent[request_class], *found)
        for request_class in CLASSES
        for each in (_latencies(with_records, request_class, beat), _parts(with_records, request_class, slo))
        for found in each
    ]


def _latencies(arms: Mapping[str, Keyed], request_class: str, beat: Callable[[], None]) -> Iterator[Found]:
    for latency in LATENCIES:
        beat()
        columns, sessions = latency_columns(arms, request_class, latency)
        exact = {name: stats.quantiles(values) for name, values in columns.items() if values}
        for (arm, base), quantiles in stats.differences(columns, sessions=sessions).items():
            for q, difference in enumerate(quantiles):
                yield arm, base, quantile_key(latency, stats.QUANTILES[q]), difference, exact[base][q]


def _parts(arms: Mapping[str, Keyed], request_class: str, slo: Slo) -> Iterator[Found]:
    for metric in METRICS.values():
        if metric.ratio is None or (metric.needs_slo and not slo):
            continue
        columns = ratio_columns(arms, request_class, metric.ratio, slo)
        for base in columns:
            others = [name for name in columns if name != base]
            found = [ratio_difference(columns[name], columns[base]) for name in others]
            ratios = [each if (each := ratio_of_ratios(columns[name], columns[base])).n else None for name in others]
            judged = stats.judged(found, lower_is_better=metric.better == "lower", ratios=ratios)
            for name, difference in zip(others, judged, strict=True):
                if difference.n:
                    yield name, base, metric.key, difference, columns[base].value


def _row(
    request_class: str, sent: int, arm: str, base: str, metric: str, difference: Difference, reference: float
) -> DifferenceRow:
    return {
        "arm": arm,
        "baseline": base,
        "class": request_class,
        "metric": metric,
        "reference": known(reference, 6),
        **interval(difference, reference, 6),
        "n": difference.n,
        "left_out": sent - difference.n,
    }


def interval(found: Difference | None, reference: float | None, digits: int) -> Interval:
    """Return the interval of a difference. `reference` is the baseline's value; None if there were no requests to
    compare."""
    relative, (low, high) = None, (math.nan, math.nan)
    if found is not None and reference and math.isfinite(reference):
        relative = known(found.difference / reference, 4)
    if found is not None and found.relative is not None:
        low, high = found.relative
    return {
        **bounds(found, digits),
        "relative": relative,
        "relative_low": known(low, 4),
        "relative_high": known(high, 4),
    }


def bounds(found: Difference | None, digits: int) -> DifferenceBounds:
    if found is None:
        return {"difference": None, "low": None, "high": None, "verdict": "too few requests"}
    difference, low, high = (known(value, digits) for value in (found.difference, found.low, found.high))
    return {"difference": difference, "low": low, "high": high, "verdict": found.verdict}


def known(value: float, digits: int) -> float | None:
    """Return the value; None if it is infinite, because the quantile is among requests without an answer."""
    return round(value, digits) if math.isfinite(value) else None


def jointly(rows: Sequence[DifferenceRow]) -> list[DifferenceRow]:
    """Return the rows with intervals and verdicts that hold jointly: over the main metrics of an arm in a class, and
    over all other metrics. With so many metrics, some would otherwise differ by chance."""

    def family(row: DifferenceRow) -> tuple[str, str, str, bool]:
        return row["arm"], row["baseline"], row["class"], row["metric"] in MAIN

    looks = Counter(map(family, rows))
    return [_held(row, looks[family(row)]) for row in rows]


def _held(row: DifferenceRow, looks: int) -> DifferenceRow:
    if row["verdict"] == "too few requests" or row["difference"] is None:
        return row
    (low, high), ratio = widened(row, row["difference"], looks)
    wider: DifferenceRow = {**row, "low": known(low, 6), "high": known(high, 6)}
    if ratio is not None:
        low, high = ratio
        wider = {**wider, "relative_low": known(low, 4), "relative_high": known(high, 4)}
    return {**wider, "verdict": "not distinguishable"} if low <= 0 <= high else wider


def widened(row: Interval, difference: float, looks: int) -> tuple[Ends, Ends | None]:
    """Return the ends of the row's difference and, if it has one, of its ratio, widened so that `looks` intervals hold
    jointly."""
    ratio, lowest, highest = row["relative"], row.get("relative_low"), row.get("relative_high")
    ends = stats.widened(difference, row["low"], row["high"], looks)
    if ratio is None or lowest is None or ratio <= -1:
        return ends, None
    return ends, stats.widened_ratio(ratio, lowest, highest, looks)


def best(
    arms: Sequence[ArmResults], differences: Sequence[DifferenceRow]
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, list[str]]]]:
    """Return (the best arm, the arms not shown to be worse than any other), each by class and metric. The best arm is
    better than every other arm by its interval. Metrics without intervals or marks have neither.
    """
    winners: dict[str, dict[str, str]] = {name: {} for name in CLASSES}
    tied: dict[str, dict[str, list[str]]] = {name: {} for name in CLASSES}
    rivals: dict[tuple[str, str], list[DifferenceRow]] = {}
    for row in differences:
        if not METRICS[row["metric"]].marked:
            continue
        rivals.setdefault((row["class"], row["metric"]), []).append(row)
    for (request_class, metric), rows in rivals.items():
        names = [arm["name"] for arm in arms if any(row["arm"] == arm["name"] for row in rows)]
        beaten = {row["baseline"] for row in rows if row["verdict"] == "better"}
        tied[request_class][metric] = [name for name in names if name not in beaten]
        for name in names:
            if all(row["verdict"] == "better" for row in rows if row["arm"] == name):
                winners[request_class][metric] = name
    return winners, tied
