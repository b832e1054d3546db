"""Computes the results of an arm or a run from its records. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from controlplane.evidence.experiments.results.metrics import METRICS, ClassRequests, known, rounded_quantile
from controlplane.evidence.experiments.results.records import NO_SLO, Record, Slo, seconds
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.experiments.results.types import ClassResults, Ecdf, ExperimentResults, WholeRunResults

CLASSES = ("all", "warm", "medium", "heavy")


def of_class(records: Sequence[Record], request_class: str) -> list[Record]:
    if request_class == "all":
        return list(records)
    return [record for record in records if record.trace_class == request_class]


def class_results(records: Sequence[Record], slo: Slo = NO_SLO, took_s: float = 0.0) -> ClassResults:
    """Return the metrics of a class by key, and counts; None for unknown values. `took_s` is the duration of the
    runs."""
    requests = ClassRequests(records, slo, took_s)
    results: ClassResults = {
        "cancelled": requests.count("cancelled"),
        "low_n": requests.count("ok") < stats.LOW_N,
    }
    return results | {key: metric.value(requests) for key, metric in METRICS.items() if metric.value is not None}


def balance(records: Sequence[Record], instances: Sequence[str]) -> tuple[float | None, dict[str, int]]:
    """Return (prompt tokens of the busiest instance ÷ their mean, prompt tokens of each); 1 is even."""
    tokens: Counter[str] = Counter(dict.fromkeys(instances, 0))
    for record in records:
        if record.instance and record.outcome == "ok":
            tokens[record.instance] += record.prompt_tokens or record.input_tokens
    total = sum(tokens.values())
    share = round(max(tokens.values()) * len(tokens) / total, 4) if total else None
    return share, dict(sorted(tokens.items()))


def output_tokens_per_s(records: Sequence[Record]) -> float | None:
    """Return the rate from the first request to the last answer, in the engine's time."""
    ended = [r.sent_s + (r.e2e_ms or 0.0) / 1000 for r in records if r.outcome == "ok"]
    if not ended:
        return None
    span = max(ended) - min(record.sent_s for record in records)
    return round(sum(record.output_tokens or 0 for record in records) / span, 2) if span > 0 else None


def came_at_once(records: Sequence[Record]) -> int:
    """Count the answers whose tokens all arrived in one read, so that their TPOT is unknown."""
    return sum(r.outcome == "ok" and (r.output_tokens or 0) > 1 and r.tpot_ms is None for r in records)


def run_results(
    records: Sequence[Record], instances: Sequence[str], slo: Slo = NO_SLO, spans: Sequence[float] = ()
) -> WholeRunResults:
    """Return the results of the records of one run, or of several runs that took `spans`."""
    took = sum(spans) or seconds(records)
    evenness, tokens = balance(records, instances)
    return {
        "classes": {name: class_results(of_class(records, name), slo, took) for name in CLASSES},
        "balance": evenness,
        "prompt_tokens_by_instance": tokens,
        "output_tokens_per_s": output_tokens_per_s(records),
        "routed_classes": dict(sorted(Counter(r.routed_class for r in records if r.routed_class).items())),
        "policy_versions": sorted({r.policy_version for r in records if r.policy_version}),
        "came_at_once": came_at_once(records),
        "late_wall_p99_ms": rounded_quantile([record.late_wall_ms for record in records], 0.99),
    }


def value_of(arm: WholeRunResults, request_class: str, metric: str) -> float | None:
    """Return the value of a metric in the results of one arm."""
    if METRICS[metric].per_class:
        return arm["classes"][request_class].get(metric)
    return cast(float | None, arm.get(metric))


def levels(results: ExperimentResults, request_class: str) -> dict[tuple[str, str], float | None]:
    """Return (arm, metric) → the value over the compared requests, infinite if a quantile is among unanswered ones. For
    a metric that is not compared, all requests of the arm count."""
    known = {
        (arm["name"], metric.key): value_of(arm, request_class, metric.key)
        for arm in results["arms"]
        for metric in METRICS.values()
        if metric.per_class or request_class == "all"
    }
    compared = {
        (row["baseline"], row["metric"]): math.inf if row["reference"] is None else row["reference"]
        for row in results["differences"]
        if row["class"] == request_class
    }
    return known | compared


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def ecdf_of(records: Sequence[Record], latency: str) -> Ecdf:
    values = known(records, latency)
    if not values:
        return {"ms": [], "share": [], "n": 0}
    x, y = stats.ecdf(values)
    return {"ms": [round(v, 3) for v in x], "share": [round(v, 5) for v in y], "n": len(values)}
