"""The design's question by class: the gains and losses of each class of requests under an arm, compared with A.

A request is warm, medium or heavy by its hits in an unbounded prefix cache, at the design's thresholds, so
the classes have the same requests in every arm.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.played import Played, Runs, spread
from controlplane.evidence.experiments.matrix import presets
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.traces.summary import ideal_hits, trace_classes
from controlplane.evidence.traces.types import TraceRequest
from fleet.counted import percent
from router.contract.connectors import MOONCAKE_STORE
from router.contract.values.json_value import JsonObject

CLASSES = ("warm", "medium", "heavy")
WORTH_NAMING = 0.01  # share of A's value below which a difference is named for no class


@dataclass(frozen=True)
class ClassMetric:
    title: str
    unit: str
    of: Callable[[Played, str], float]
    digits: int = 2


def _quantile(name: str, q: float, scale: float = 1.0) -> Callable[[Played, str], float]:
    def value(one: Played, group: str) -> float:
        times = (time for time, of in zip(getattr(one, name), one.classes, strict=True) if of == group)
        return scale * stats.quantile(sorted(times), q)

    return value


METRICS = (
    ClassMetric("TTFT p50", "s", _quantile("ttft", 0.5)),
    ClassMetric("TTFT p90", "s", _quantile("ttft", 0.9)),
    ClassMetric("TPOT p50", "ms", _quantile("tpot", 0.5, 1000), 0),
    ClassMetric("E2E p50", "s", _quantile("e2e", 0.5)),
)
WITH_TPOT_P90 = (
    ClassMetric("TTFT p50", "s", _quantile("ttft", 0.5)),
    ClassMetric("TTFT p90", "s", _quantile("ttft", 0.9)),
    ClassMetric("TPOT p50", "ms", _quantile("tpot", 0.5, 1000), 0),
    ClassMetric("TPOT p90", "ms", _quantile("tpot", 0.9, 1000), 0),
    ClassMetric("E2E p50", "s", _quantile("e2e", 0.5)),
)


STORE_ARM: JsonObject = {
    "name": "D over the Mooncake store",
    "strategy": "adaptive_offload",
    "overrides": presets.HEAVY_OF_DESIGN,
    "fleet": {
        "engine": {"kv": MOONCAKE_STORE, "store_pool": "store"},
        "store": {"gb_per_s": 9.7, "capacity_gb": 8_000},  # 1 TB of host memory per instance
    },
}
PRICED: JsonObject = {"name": "priced", "strategy": "priced"}
THRESHOLDS = (presets.A, *presets.C, PRICED)
ARMS = (presets.A, *presets.OFFLOADS, STORE_ARM, *presets.SPLITS)  # all are compared with the first


def shares(runs: Runs) -> str:
    """Return the share of each class in the cell's requests, which is the same in every arm."""
    played = next(iter(runs.values()))
    each = [(group, fmean(one.classes.count(group) / len(one.classes) for one in played)) for group in CLASSES]
    return ", ".join(f"{percent(share)} {group}" for group, share in each)


SHARES = (
    "trace",
    "warm",
    "medium",
    "heavy",
    "more than 90 % cached",
    "at most half cached",
    "new tokens of these, mean",
)
DESIGN_SHARES = "| the design's trace | 36 % | 44 % | 20 % | 22 % | 55 % | 17,700 |"


def trace_shares(name: str, requests: Sequence[TraceRequest]) -> str:
    """Return a row of SHARES, with the hits of an unbounded prefix cache."""
    hits, classes = ideal_hits(requests), [*trace_classes(requests).values()]
    cold = [one.input_tokens - hit for one, hit in zip(requests, hits, strict=True) if hit <= one.input_tokens / 2]
    nearly = sum(hit > 0.9 * one.input_tokens for one, hit in zip(requests, hits, strict=True))
    counts = (*(classes.count(group) for group in CLASSES), nearly, len(cold))
    texts = (percent(count / len(requests), ".0f") for count in counts)
    return f"| {name} | {' | '.join(texts)} | {fmean(cold or [0]):,.0f} |"


def table(runs: Runs, metrics: Sequence[ClassMetric] = METRICS) -> Iterator[str]:
    """Yield one row per arm; each class with its metrics."""
    present = [group for group in CLASSES if all(group in one.classes for one in next(iter(runs.values())))]
    heads = (f"{group}: {' / '.join(metric.title for metric in metrics)}" for group in present)
    yield f"| | {' | '.join(heads)} | gains | pays |"
    yield "|---" * (len(present) + 3) + "|"
    base = next(iter(runs.values()))
    for arm, played in runs.items():
        cells = (" / ".join(_cell(played, metric, group) for metric in metrics) for group in present)
        gains, pays = changes(base, played, present, metrics)
        yield f"| {arm} | {' | '.join(cells)} | {gains or '–'} | {pays or '–'} |"


def _cell(played: Sequence[Played], metric: ClassMetric, group: str) -> str:
    value = fmean(metric.of(one, group) for one in played)
    return "not answered" if math.isinf(value) else f"{value:,.{metric.digits}f}"


def changes(
    base: Sequence[Played],
    played: Sequence[Played],
    groups: Sequence[str],
    metrics: Sequence[ClassMetric] = METRICS,
) -> tuple[str, str]:
    """Return (decreases, increases) against `base` whose intervals over the paired seeds exclude zero."""
    gains, pays = [], []
    for group in groups:
        ratios = [*_ratios(base, played, group, metrics)]
        for into, is_gain in ((gains, True), (pays, False)):
            texts = [f"{title} × {_short(ratio)}" for title, ratio in ratios if (ratio < 1) == is_gain]
            into.extend([f"{group}: {', '.join(texts)}"] if texts else [])
    return "; ".join(gains), "; ".join(pays)


def _short(ratio: float) -> str:
    return "∞" if math.isinf(ratio) else f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _ratios(
    base: Sequence[Played], played: Sequence[Played], group: str, metrics: Sequence[ClassMetric]
) -> Iterator[tuple[str, float]]:
    """Yield the ratios; infinite if requests of the class got no answer."""
    for metric in metrics:
        before, now = ([metric.of(one, group) for one in each] for each in (base, played))
        if not all(map(math.isfinite, before)) or not fmean(before):
            continue
        middle, half = spread([late - soon for soon, late in zip(before, now, strict=True)])
        if math.isinf(middle) or abs(middle) > max(half, WORTH_NAMING * fmean(before)):
            yield metric.title, fmean(now) / fmean(before)
