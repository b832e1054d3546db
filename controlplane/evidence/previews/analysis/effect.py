"""Computes the effect of a draft from the twin's outcomes under the live version and the draft. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import NormalDist, fmean

from controlplane.evidence.experiments.results.metrics import quantile_key
from controlplane.evidence.experiments.results.records import LATENCIES
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.experiments.results.statistics.comparison import interval
from controlplane.evidence.previews.analysis.types import (
    Bounds,
    ChangedDecisions,
    ClassEffect,
    DecisionCount,
    DraftEffect,
    InstanceRequests,
    MetricEffect,
    ValuePair,
)
from controlplane.evidence.twin.simulation.types import Simulated, TwinOutcome
from router.policy.types import CLASSES

NORMAL_95 = NormalDist().inv_cdf(0.975)
Pair = tuple[Simulated, Simulated]  # the same request under the live version and under the draft


def effect_of(live: Sequence[TwinOutcome], draft: Sequence[TwinOutcome], instances: Sequence[str]) -> DraftEffect:
    """Return the effect. `live` and `draft` have an outcome for each seed; in live's outcomes, the draft is the shadow.
    Canary and saving are added later."""
    pairs = paired(live, draft)
    return {
        "changed": changed([ours for ours, _ in pairs]),
        "instances": _instances(pairs, instances),
        "classes": {name: found for name in ("all", *CLASSES) if (found := _class(of_class(pairs, name)))},
        "refused": {"live": _refused([live for live, _ in pairs]), "draft": _refused([draft for _, draft in pairs])},
        "hit_share": _both(pairs, _hit_share),
        "new_tokens_per_s": _both(pairs, _new_tokens_per_s),
        "saved_tokens_per_s": saved_tokens_per_s(pairs),
        "requests_per_s": _requests_per_s([ours for ours, _ in pairs]),
        "kv_usage": {"live": _kv_usage(live), "draft": _kv_usage(draft)},
        "canary": None,
        "saving": None,
    }


def paired(live: Sequence[TwinOutcome], draft: Sequence[TwinOutcome]) -> list[Pair]:
    return [
        pair
        for ours, theirs in zip(live, draft, strict=True)
        for pair in zip(ours.requests, theirs.requests, strict=True)
    ]


def of_class(pairs: Sequence[Pair], name: str) -> list[Pair]:
    """Return the pairs of a class, by the class under the live version."""
    return [pair for pair in pairs if name in ("all", pair[0].request_class)]


def changed(live: Sequence[Simulated]) -> ChangedDecisions:
    """Return the share of decisions that the draft would have made differently in the same situation."""
    hits, n = sum(request.shadow_changed for request in live), len(live)
    low, high = stats.wilson(hits, n)
    return {
        "decisions": hits,
        "of": n,
        "share": round(hits / n, 6),
        "low": round(low, 6),
        "high": round(high, 6),
        "classes": {name: _counted([request for request in live if request.request_class == name]) for name in CLASSES},
    }


def _counted(live: Sequence[Simulated]) -> DecisionCount:
    return {"decisions": sum(request.shadow_changed for request in live), "of": len(live)}


def _instances(pairs: Sequence[Pair], instances: Sequence[str]) -> list[InstanceRequests]:
    live, draft = (Counter(pair[side].instance for pair in pairs) for side in (0, 1))
    return [{"id": name, "live": live[name], "draft": draft[name]} for name in instances]


def _class(pairs: Sequence[Pair]) -> ClassEffect | None:
    """Return the effect on a class; None without requests."""
    if not pairs:
        return None
    return {"n": len(pairs), "metrics": [row for latency in LATENCIES for row in _rows(pairs, latency)]}


def _rows(pairs: Sequence[Pair], latency: str) -> list[MetricEffect]:
    """Return a row for each quantile, over the requests answered under both versions."""
    both = [
        (ours * 1000, theirs * 1000, a.session_key)
        for a, b in pairs
        if (ours := getattr(a, f"{latency}_s")) is not None and (theirs := getattr(b, f"{latency}_s")) is not None
    ]
    columns = {"live": [ours for ours, _, _ in both], "draft": [theirs for _, theirs, _ in both]}
    found = stats.differences(columns, sessions=[session for *_, session in both]).get(
        ("draft", "live"), (None,) * len(stats.QUANTILES)
    )
    return [
        _row(quantile_key(latency, share), columns, share, difference)
        for share, difference in zip(stats.QUANTILES, found, strict=True)
    ]


def _row(
    metric: str, columns: Mapping[str, Sequence[float]], share: float, found: stats.Difference | None
) -> MetricEffect:
    live, draft = (
        None if found is None else stats.quantile(sorted(columns[name]), share) for name in ("live", "draft")
    )
    return {
        "metric": metric,
        "live": None if live is None else round(live, 3),
        "draft": None if draft is None else round(draft, 3),
        **interval(found, live, 3),
        "n": 0 if found is None else found.n,
    }


def _both(pairs: Sequence[Pair], measure: Callable[[list[Simulated]], float | None]) -> ValuePair:
    return {"live": measure([live for live, _ in pairs]), "draft": measure([draft for _, draft in pairs])}


def _refused(requests: Sequence[Simulated]) -> int:
    """Count unanswered requests, except client errors."""
    return sum(request.outcome not in ("ok", "client_error") for request in requests)


def _hit_share(requests: Sequence[Simulated]) -> float | None:
    """Return the cached share of the prompt tokens of answered requests, 0–1."""
    answered = [request for request in requests if request.outcome == "ok"]
    tokens = sum(request.input_tokens for request in answered)
    return round(sum(request.cached_tokens for request in answered) / tokens, 6) if tokens else None


def _new_tokens_per_s(requests: Sequence[Simulated]) -> float | None:
    """Return the prompt tokens computed for answered requests per second of sending; the times of all seeds are added
    up."""
    span = _span_s(requests)
    new = sum(request.input_tokens - request.cached_tokens for request in requests if request.outcome == "ok")
    return round(new / span, 3) if span > 0 else None


def saved_tokens_per_s(pairs: Sequence[Pair]) -> Bounds | None:
    """Return the 95 % interval of the prompt tokens that only the live version computes; None with fewer than two
    sessions. Sessions are independent, unlike the requests of a session; a request counts if both versions answer it.
    """
    saved: Counter[object] = Counter()
    for ours, theirs in pairs:
        if ours.outcome == theirs.outcome == "ok":
            saved[ours.session_key] += theirs.cached_tokens - ours.cached_tokens
    span, count = _span_s([ours for ours, _ in pairs]), len(saved)
    if span <= 0 or count < 2:
        return None
    mean = sum(saved.values()) / count
    squares = sum((tokens - mean) ** 2 for tokens in saved.values())
    half = NORMAL_95 * math.sqrt(squares * count / (count - 1))
    return {"low": (mean * count - half) / span, "high": (mean * count + half) / span}


def _requests_per_s(requests: Sequence[Simulated]) -> float | None:
    span = _span_s(requests)
    return round(len(requests) / span, 6) if span > 0 else None


def _span_s(requests: Sequence[Simulated]) -> float:
    spans = [
        [request.sent_s for request in requests if request.seed == seed]
        for seed in {request.seed for request in requests}
    ]
    return sum(max(sent) - min(sent) for sent in spans)


def _kv_usage(outcomes: Sequence[TwinOutcome]) -> float | None:
    """Return the mean over instances and time, 0–1."""
    samples = list(chain.from_iterable(use.kv_usage for outcome in outcomes for use in outcome.instances.values()))
    return round(fmean(samples), 6) if samples else None
