"""The results of one arm or one run, from its records. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from controlplane.experiments.results.metrics import LATENCIES, METRICS, TTFT_SHARES, quantile_key
from controlplane.experiments.results.records import Record
from controlplane.experiments.results.slo import NO_SLO, Slo, is_within, seconds
from controlplane.experiments.results.statistics import stats
from controlplane.experiments.results.types import ClassResults, Ecdf, WholeRunResults

CLASSES = ("all", "warm", "medium", "heavy")


def of_class(records: Sequence[Record], request_class: str) -> list[Record]:
    if request_class == "all":
        return list(records)
    return [record for record in records if record.trace_class == request_class]


def latencies(records: Sequence[Record], latency: str) -> list[float]:
    values = (getattr(record, f"{latency}_ms") for record in records)
    return [value for value in values if value is not None]


def class_results(records: Sequence[Record], slo: Slo = NO_SLO, took_s: float = 0.0) -> ClassResults:
    """Counts, quantiles in ms, cached share, goodput; None for an unknown value. `took_s`: by the runs."""
    outcomes = Counter(record.outcome for record in records)
    results: ClassResults = {
        "n": len(records),
        "ok": outcomes["ok"],
        "errors": outcomes["error"],
        "refused": outcomes["refused"],
        "cancelled": outcomes["cancelled"],
        "low_n": outcomes["ok"] < stats.LOW_N,
        "hit_ratio": hit_ratio(records),
    }
    results |= _goodput(records, slo, took_s)
    results |= {key: _ttft_share(records, field) for key, field in TTFT_SHARES.items()}
    for latency in LATENCIES:
        values = latencies(records, latency)
        shown = [round(value, 3) for value in stats.quantiles(values)] if values else [None] * len(stats.QUANTILES)
        results |= {quantile_key(latency, share): v for share, v in zip(stats.QUANTILES, shown, strict=True)}
    return results


def _goodput(records: Sequence[Record], slo: Slo, took_s: float) -> dict[str, float | None]:
    """None without an SLO, or without requests. Refused and failed requests are not within it."""
    counted = sum(record.outcome != "cancelled" for record in records)
    if not slo or not counted or not took_s:
        return {"within_slo": None, "goodput": None}
    within = sum(is_within(record, slo) for record in records)
    return {"within_slo": round(within / counted, 6), "goodput": round(within / took_s, 4)}


def _ttft_share(records: Sequence[Record], field: str) -> float | None:
    known = [(getattr(r, field), r.ttft_ms) for r in records if getattr(r, field) is not None and r.ttft_ms]
    ttft = sum(whole for _, whole in known)
    return round(sum(part for part, _ in known) / ttft, 6) if ttft else None


def hit_ratio(records: Sequence[Record]) -> float | None:
    """Cached share of the prompt tokens, 0–1, over answers that report both."""
    known = [r for r in records if r.prompt_tokens and r.cached_tokens is not None]
    prompt = sum(r.prompt_tokens or 0 for r in known)
    return round(sum(r.cached_tokens or 0 for r in known) / prompt, 6) if prompt else None


def balance(records: Sequence[Record], instances: Sequence[str]) -> tuple[float | None, dict[str, int]]:
    """(prompt tokens of the busiest instance ÷ their mean, prompt tokens of each): 1 is even."""
    tokens: Counter[str] = Counter(dict.fromkeys(instances, 0))
    for record in records:
        if record.instance and record.outcome == "ok":
            tokens[record.instance] += record.prompt_tokens or record.input_tokens
    total = sum(tokens.values())
    share = round(max(tokens.values()) * len(tokens) / total, 4) if total else None
    return share, dict(sorted(tokens.items()))


def output_tokens_per_s(records: Sequence[Record]) -> float | None:
    """From the first request to the last answer, in the time of the engine."""
    ended = [r.sent_s + (r.e2e_ms or 0.0) / 1000 for r in records if r.outcome == "ok"]
    if not ended:
        return None
    span = max(ended) - min(record.sent_s for record in records)
    return round(sum(record.output_tokens or 0 for record in records) / span, 2) if span > 0 else None


def came_at_once(records: Sequence[Record]) -> int:
    """Answers whose tokens all came in one read, so their TPOT is unknown."""
    return sum(r.outcome == "ok" and (r.output_tokens or 0) > 1 and r.tpot_ms is None for r in records)


def quantile_of(values: Sequence[float], share: float) -> float | None:
    return round(stats.quantile(sorted(values), share), 3) if values else None


def run_results(
    records: Sequence[Record], instances: Sequence[str], slo: Slo = NO_SLO, spans: Sequence[float] = ()
) -> WholeRunResults:
    """The results of the records of one run, or of several that took `spans`."""
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
        "late_wall_p99_ms": quantile_of([record.late_wall_ms for record in records], 0.99),
    }


def value_of(arm: WholeRunResults, request_class: str, metric: str) -> float | None:
    """The value of a metric in the results of one arm."""
    if METRICS[metric].per_class:
        return arm["classes"][request_class].get(metric)
    return cast(float | None, arm.get(metric))


def mean(values: Iterable[float | None]) -> float | None:
    """Of the known ones."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def ecdf_of(records: Sequence[Record], latency: str) -> Ecdf:
    values = latencies(records, latency)
    if not values:
        return {"ms": [], "share": [], "n": 0}
    x, y = stats.ecdf(values)
    return {"ms": [round(v, 3) for v in x], "share": [round(v, 5) for v in y], "n": len(values)}
