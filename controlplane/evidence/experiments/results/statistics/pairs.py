"""Pairs the same requests across arms, and estimates from the pairs. Every request that was sent in an arm counts: a
refused or failed one is infinitely late, outside the SLO and without cached tokens. Otherwise an arm could look fast by
refusing requests. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.evidence.experiments.results.metrics import METRICS, Ratio
from controlplane.evidence.experiments.results.records import Record, Slo
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.experiments.results.statistics.stats import ResampledEstimate

Key = tuple[int, int]  # (seed, request index)
Session = tuple[int, str | int]  # (seed, session); a request without a session is a session by itself
Keyed = Mapping[Key, Record]  # records of one arm


@dataclass(frozen=True, slots=True)
class SumRatio:
    """A metric that is a sum over requests divided by another."""

    numerators: list[float]
    denominators: list[float]
    sessions: list[Session]  # session of each request

    @property
    def value(self) -> float:
        total = sum(self.denominators)
        return sum(self.numerators) / total if total else 0.0

    def pull(self) -> list[float]:
        """Return by how much each request changes the value."""
        value, total = self.value, sum(self.denominators)
        rows = zip(self.numerators, self.denominators, strict=True)
        return [(above - value * below) / total if total else 0.0 for above, below in rows]


def is_closed(record: Record | None, request_class: str) -> bool:
    """Return whether the request was sent and not cancelled with its run."""
    return record is not None and record.outcome != "cancelled" and request_class in ("all", record.trace_class)


def session_of(key: Key, record: Record | None) -> Session:
    seed, index = key
    return seed, (record.session if record else "") or index


def latency_columns(
    arms: Mapping[str, Keyed], request_class: str, latency: str
) -> tuple[dict[str, list[float]], list[Session]]:
    """Return (a column of values in ms for each arm, the session of each row); each row is the same request in all
    arms. Rows with unknown values are left out."""
    first = next(iter(arms.values()))
    keys = [key for key in sorted(first) if all(is_closed(keyed.get(key), request_class) for keyed in arms.values())]
    rows = [[_latency(keyed[key], latency) for keyed in arms.values()] for key in keys]
    known = [i for i, row in enumerate(rows) if None not in row]
    columns = {name: [rows[i][column] for i in known] for column, name in enumerate(arms)}
    return columns, [session_of(keys[i], first[keys[i]]) for i in known]  # type: ignore[return-value]


def _latency(record: Record, latency: str) -> float | None:
    value: float | None = getattr(record, f"{latency}_ms")
    return value if record.outcome == "ok" else math.inf


def ratio_columns(arms: Mapping[str, Keyed], request_class: str, ratio: Ratio, slo: Slo) -> dict[str, SumRatio]:
    """Return the sums by arm; each row is the same request in all arms. Requests that were not sent in some arm are
    left out."""
    first = next(iter(arms.values()))
    common = [key for key in sorted(first) if all(is_closed(keyed.get(key), "all") for keyed in arms.values())]
    keys = [key for key in common if is_closed(first[key], request_class)]
    sessions = [session_of(key, first[key]) for key in keys]
    found = {}
    for name, keyed in arms.items():
        rows = [ratio.part(keyed[key], slo) for key in keys]
        found[name] = SumRatio([above for above, _ in rows], [below for _, below in rows], sessions)
        if ratio.total is not None and keys:
            total = ratio.total(_by_seed({key: keyed[key] for key in common}).values())
            found[name] = SumRatio(found[name].numerators, [total / len(keys)] * len(keys), sessions)
    return found


def sent_to_any(arms: Mapping[str, Keyed], request_class: str) -> int:
    """Count the requests of the class that were sent in at least one arm."""
    return len({key for keyed in arms.values() for key, record in keyed.items() if is_closed(record, request_class)})


def _by_seed(keyed: Keyed) -> dict[int, list[Record]]:
    runs: dict[int, list[Record]] = {}
    for (seed, _), record in keyed.items():
        runs.setdefault(seed, []).append(record)
    return runs


def ratio_difference(arm: SumRatio, base: SumRatio) -> ResampledEstimate:
    error = _error([a - b for a, b in zip(arm.pull(), base.pull(), strict=True)], arm.sessions)
    return ResampledEstimate.normal(arm.value - base.value, error, _rows(arm, base), _sessions(arm, base))


def ratio_of_ratios(arm: SumRatio, base: SumRatio) -> ResampledEstimate:
    """Return the ratio, with the first-order error of its logarithm; if one side is zero, n is 0."""
    value, reference = arm.value, base.value
    if not value or not reference:
        return ResampledEstimate(stats.ratio(value, reference), (stats.ratio(value, reference),), 0)
    error = _error([a / value - b / reference for a, b in zip(arm.pull(), base.pull(), strict=True)], arm.sessions)
    return ResampledEstimate.log_normal(value / reference, error, _rows(arm, base), _sessions(arm, base))


def _error(pulls: Sequence[float], sessions: Sequence[Session]) -> float:
    """Return the standard error of a sum over independent sessions."""
    sums: dict[Session, float] = {}
    for pull, session in zip(pulls, sessions, strict=True):
        sums[session] = sums.get(session, 0.0) + pull
    mean = math.fsum(sums.values()) / max(len(sums), 1)
    return math.sqrt(math.fsum((each - mean) ** 2 for each in sums.values()))


def _rows(*arms: SumRatio) -> int:
    return min(sum(below > 0 for below in arm.denominators) for arm in arms)


def _sessions(*arms: SumRatio) -> int:
    return min(len({s for s, below in zip(arm.sessions, arm.denominators, strict=True) if below > 0}) for arm in arms)


@dataclass(frozen=True, slots=True)
class Resampled:
    """The quantiles of the requests, and of every resample, by arm."""

    exact: dict[str, tuple[float, ...]]
    drawn: dict[str, list[tuple[float, ...]]]
    n: int  # number of requests
    sessions: int


@dataclass
class Estimator:
    """Estimates from the records of an experiment; one resampling serves all quantiles of a latency."""

    arms: Mapping[str, Keyed]
    slo: Slo
    _resampled: dict[tuple[str, ...], Resampled] = field(default_factory=dict)

    def value(self, arm: str, request_class: str, metric: str) -> ResampledEstimate | None:
        """Return the estimate of the value; None without requests, and for a metric without intervals."""
        found = METRICS[metric]
        if found.quantile is not None:
            return self._quantile((arm,), request_class, *found.quantile)
        if found.ratio is None:
            return None
        sums = ratio_columns({arm: self.arms[arm]}, request_class, found.ratio, self.slo)[arm]
        rows = _rows(sums)
        error = _error(sums.pull(), sums.sessions)
        return ResampledEstimate.normal(sums.value, error, rows, _sessions(sums)) if rows else None

    def ratio(self, arm: str, base: str, request_class: str, metric: str) -> ResampledEstimate | None:
        """Return the estimate of the ratio; None if no request was sent in both arms, or if the baseline is zero."""
        found = METRICS[metric]
        if found.quantile is not None:
            return self._quantile((arm, base), request_class, *found.quantile)
        if found.ratio is None:
            return None
        pair = {name: self.arms[name] for name in (arm, base)}
        columns = ratio_columns(pair, request_class, found.ratio, self.slo)
        estimate = ratio_of_ratios(columns[arm], columns[base])
        return estimate if estimate.n else None

    def quantile(self, arm: str, request_class: str, latency: str, share: float) -> float | None:
        return stats.quantile_of(latency_columns({arm: self.arms[arm]}, request_class, latency)[0][arm], share)

    def _quantile(
        self, names: tuple[str, ...], request_class: str, latency: str, share: float
    ) -> ResampledEstimate | None:
        found = self._bootstrapped(names, request_class, latency)
        if not found.n:
            return None
        q, size = stats.QUANTILES.index(share), (found.n, found.sessions)
        if len(names) == 1:
            return ResampledEstimate.of(found.exact[names[0]][q], (each[q] for each in found.drawn[names[0]]), *size)
        arm, base = names
        ratios = (stats.ratio(a[q], b[q]) for a, b in zip(found.drawn[arm], found.drawn[base], strict=True))
        exact = stats.ratio(found.exact[arm][q], found.exact[base][q])
        return ResampledEstimate.of(exact, ratios, *size, is_ratio=True)

    def _bootstrapped(self, names: tuple[str, ...], request_class: str, latency: str) -> Resampled:
        key = (*names, request_class, latency)
        if key not in self._resampled:
            columns, sessions = latency_columns({name: self.arms[name] for name in names}, request_class, latency)
            n = len(sessions)
            exact = {name: stats.quantiles(values) for name, values in columns.items()} if n else {}
            drawn = stats.bootstrap(columns, sessions=sessions) if n else {}
            self._resampled[key] = Resampled(exact, drawn, n, len(set(sessions)))
        return self._resampled[key]
