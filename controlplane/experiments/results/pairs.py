"""The same requests in several arms, and estimates from them.

Every request that an arm was sent counts: one that it refused or failed is infinitely late, outside the SLO and
without cached tokens. Otherwise an arm could look fast by refusing. Pure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from controlplane.experiments.results import stats
from controlplane.experiments.results.metrics import QUANTILE_OF, TTFT_SHARES
from controlplane.experiments.results.records import Record
from controlplane.experiments.results.slo import Slo, is_within, seconds
from controlplane.experiments.results.stats import ResampledEstimate

Key = tuple[int, int]  # seed, request index
Keyed = Mapping[Key, Record]  # of one arm


@dataclass(frozen=True, slots=True)
class Parts:
    """A metric that is a sum over requests divided by another."""

    top: list[float]
    bottom: list[float]

    @property
    def value(self) -> float:
        bottom = sum(self.bottom)
        return sum(self.top) / bottom if bottom else 0.0

    def pull(self) -> list[float]:
        """How far each request moves the value."""
        value, bottom = self.value, sum(self.bottom)
        return [(t - value * b) / bottom if bottom else 0.0 for t, b in zip(self.top, self.bottom, strict=True)]


def is_closed(record: Record | None, request_class: str) -> bool:
    """It was sent and not cancelled with its run."""
    return record is not None and record.outcome != "cancelled" and request_class in ("all", record.trace_class)


def latency_columns(arms: Mapping[str, Keyed], request_class: str, latency: str) -> dict[str, list[float]]:
    """A column of values in ms for each arm; row i is the same request in all. Unknown values are left out."""
    first = next(iter(arms.values()))
    keys = [key for key in sorted(first) if all(is_closed(keyed.get(key), request_class) for keyed in arms.values())]
    rows = [[_latency(keyed[key], latency) for keyed in arms.values()] for key in keys]
    known = [row for row in rows if None not in row]
    return {name: [row[i] for row in known] for i, name in enumerate(arms)}  # type: ignore[misc]


def _latency(record: Record, latency: str) -> float | None:
    value: float | None = getattr(record, f"{latency}_ms")
    return value if record.outcome == "ok" else math.inf


def parts_columns(arms: Mapping[str, Keyed], request_class: str, metric: str, slo: Slo) -> dict[str, Parts]:
    """Of each arm; row i is the same request in all, and counts for nothing where it was not sent."""
    keys = sorted({key for keyed in arms.values() for key in keyed})
    split = SPLITS[metric](slo)
    found = {}
    for name, keyed in arms.items():
        rows = [split(r) if is_closed(r := keyed.get(key), request_class) and r else (0.0, 0.0) for key in keys]
        found[name] = Parts([top for top, _ in rows], [bottom for _, bottom in rows])
        if metric in TOTALS:
            found[name] = Parts(found[name].top, [TOTALS[metric](keyed) / len(keys)] * len(keys))
    return found


def _by_seed(keyed: Keyed) -> dict[int, list[Record]]:
    runs: dict[int, list[Record]] = {}
    for (seed, _), record in keyed.items():
        runs.setdefault(seed, []).append(record)
    return runs


def _seconds(keyed: Keyed) -> float:
    return sum(seconds(records) for records in _by_seed(keyed).values())


# What the sum of a metric is divided by, where that is no sum over requests
TOTALS: dict[str, Callable[[Keyed], float]] = {"goodput": _seconds, "errors": lambda _: 1.0, "refused": lambda _: 1.0}
Split = Callable[[Record], tuple[float, float]]


def _share(holds: Callable[[Record], bool]) -> Split:
    return lambda record: (float(holds(record)), 1.0)


def _ttft_split(field: str, _: Slo) -> Split:
    return partial(_of_ttft, field)


def _of_ttft(field: str, record: Record) -> tuple[float, float]:
    part: float | None = getattr(record, field)
    return (0.0, 0.0) if part is None else (part, record.ttft_ms or 0.0)


SPLITS: dict[str, Callable[[Slo], Split]] = {
    "within_slo": lambda slo: _share(lambda record: is_within(record, slo)),
    "goodput": lambda slo: _share(lambda record: is_within(record, slo)),
    "hit_ratio": lambda slo: lambda r: (float(r.cached_tokens or 0), float(r.prompt_tokens or r.input_tokens)),
    **{key: partial(_ttft_split, field) for key, field in TTFT_SHARES.items()},
    "errors": lambda slo: _share(lambda record: record.outcome == "error"),
    "refused": lambda slo: _share(lambda record: record.outcome == "refused"),
}


def parts_difference(arm: Parts, base: Parts) -> ResampledEstimate:
    error = _error([a - b for a, b in zip(arm.pull(), base.pull(), strict=True)])
    return ResampledEstimate.normal(arm.value - base.value, error, _rows(arm, base))


def _parts_ratio(arm: Parts, base: Parts) -> ResampledEstimate:
    """With the error of its logarithm, to first order."""
    value, reference = arm.value, base.value
    if not value or not reference:
        return ResampledEstimate(stats.ratio(value, reference), (stats.ratio(value, reference),), 0)
    error = _error([a / value - b / reference for a, b in zip(arm.pull(), base.pull(), strict=True)])
    return ResampledEstimate.normal(value / reference, error * value / reference, _rows(arm, base))


def _error(pulls: Sequence[float]) -> float:
    """Of a sum over independent requests."""
    mean = math.fsum(pulls) / max(len(pulls), 1)
    return math.sqrt(math.fsum((pull - mean) ** 2 for pull in pulls))


def _rows(*arms: Parts) -> int:
    return min(sum(bottom > 0 for bottom in arm.bottom) for arm in arms)


@dataclass
class Estimator:
    """Estimates over the records of an experiment; a resampling serves every quantile of its latency."""

    arms: Mapping[str, Keyed]
    slo: Slo
    _resampled: dict[tuple[str, ...], tuple[dict[str, tuple[float, ...]], dict[str, list[tuple[float, ...]]], int]] = (
        field(default_factory=dict)
    )

    def value(self, arm: str, request_class: str, metric: str) -> ResampledEstimate | None:
        """None without a request."""
        if metric in QUANTILE_OF:
            return self._quantile((arm,), request_class, metric)
        parts = parts_columns({arm: self.arms[arm]}, request_class, metric, self.slo)[arm]
        rows = _rows(parts)
        return ResampledEstimate.normal(parts.value, _error(parts.pull()), rows) if rows else None

    def ratio(self, arm: str, base: str, request_class: str, metric: str) -> ResampledEstimate | None:
        """None without a request that both were sent, and while the baseline is zero."""
        if metric in QUANTILE_OF:
            return self._quantile((arm, base), request_class, metric)
        pair = {name: self.arms[name] for name in (arm, base)}
        parts = parts_columns(pair, request_class, metric, self.slo)
        found = _parts_ratio(parts[arm], parts[base])
        return found if found.n else None

    def quantile(self, arm: str, request_class: str, metric: str) -> float | None:
        latency, share = QUANTILE_OF[metric]
        values = latency_columns({arm: self.arms[arm]}, request_class, latency)[arm]
        return stats.quantile(sorted(values), share) if values else None

    def _quantile(self, names: tuple[str, ...], request_class: str, metric: str) -> ResampledEstimate | None:
        latency, share = QUANTILE_OF[metric]
        exact, drawn, n = self._bootstrapped(names, request_class, latency)
        if not n:
            return None
        q = stats.QUANTILES.index(share)
        if len(names) == 1:
            return ResampledEstimate.of(exact[names[0]][q], (each[q] for each in drawn[names[0]]), n)
        arm, base = names
        ratios = (stats.ratio(a[q], b[q]) for a, b in zip(drawn[arm], drawn[base], strict=True))
        return ResampledEstimate.of(stats.ratio(exact[arm][q], exact[base][q]), ratios, n)

    def _bootstrapped(
        self, names: tuple[str, ...], request_class: str, latency: str
    ) -> tuple[dict[str, tuple[float, ...]], dict[str, list[tuple[float, ...]]], int]:
        key = (*names, request_class, latency)
        if key not in self._resampled:
            columns = latency_columns({name: self.arms[name] for name in names}, request_class, latency)
            n = len(columns[names[0]])
            exact = {name: stats.quantiles(values) for name, values in columns.items()} if n else {}
            self._resampled[key] = (exact, stats.bootstrap(columns) if n else {}, n)
        return self._resampled[key]
