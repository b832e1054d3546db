"""Statistics of an experiment, as pure functions: quantiles, ECDF, paired bootstrap, Holm's levels, verdicts. Arms
replay the same requests, so differences are computed between resamples of the same requests, and variation between
requests (a long prompt is slow under every policy) cancels out. Requests of one session depend on each other, so
sessions are drawn as a whole. SciPy also has a paired bootstrap, but with NumPy it would add more than 100 MB to the
installation.
"""

import math
import random
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, repeat, starmap
from operator import itemgetter
from statistics import NormalDist, pstdev
from typing import Literal

QUANTILES = (0.5, 0.9, 0.99)
LOW_N = 20  # with fewer requests, a mark replaces the verdict
LOW_SESSIONS = 5  # the same for fewer sessions, whose resamples say little about other sessions
CONFIDENCE = 0.95
RESAMPLES = 500
RESAMPLES_LEAST = 100
WORK_LIMIT = 4_000_000  # drawn values per comparison; if there were more, fewer resamples are drawn
ECDF_POINTS = 120

Verdict = Literal["better", "worse", "not distinguishable", "too few requests"]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of at least one sorted value; linear between neighbours (Hyndman and Fan's definition 7)."""
    return _between(ordered.__getitem__, len(ordered), share)


def quantile_of(values: Collection[float], share: float) -> float | None:
    """Return the quantile of values in any order; None if there are none."""
    return quantile(sorted(values), share) if values else None


def _between(at: Callable[[int], float], n: int, share: float) -> float:
    """Return the quantile of n values; `at` returns the value of a rank, from 0."""
    place = (n - 1) * share
    below = int(place)
    low, high = at(below), at(min(below + 1, n - 1))
    return low if low == high else low + (high - low) * (place - below)  # infinity minus infinity would be NaN


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return the QUANTILES of at least one value."""
    ordered = sorted(values)
    return tuple(quantile(ordered, share) for share in QUANTILES)


def ecdf(values: Sequence[float], points: int = ECDF_POINTS) -> tuple[list[float], list[float]]:
    """Return (values, shares of values at or below them), thinned to at most `points` with the ends kept."""
    ordered = sorted(values)
    n = len(ordered)
    count = min(n, points)
    ranks = [round(i * (n - 1) / max(count - 1, 1)) for i in range(count)]
    return [ordered[rank] for rank in ranks], [(rank + 1) / n for rank in ranks]


@dataclass(frozen=True, slots=True)
class Difference:
    """Arm minus baseline for one quantile, with its interval."""

    difference: float  # infinite if one arm's quantile is among requests that it did not answer
    low: float
    high: float
    n: int  # number of requests in both arms
    verdict: Verdict
    relative: tuple[float, float] | None = None  # interval of their ratio, minus one; None without a ratio


@dataclass(frozen=True, slots=True)
class ResampledEstimate:
    """A statistic of the requests, and of each of their resamples."""

    exact: float
    drawn: tuple[float, ...]  # sorted values of the resamples
    n: int  # number of requests
    sessions: int | None = None  # None: the number of requests
    is_ratio: bool = False  # True if errors are symmetric in the logarithm, so that no interval extends below zero

    @classmethod
    def of(
        cls, exact: float, drawn: Iterable[float], n: int, sessions: int | None = None, is_ratio: bool = False
    ) -> "ResampledEstimate":
        return cls(exact, tuple(sorted(drawn)), n, sessions, is_ratio)

    @classmethod
    def normal(cls, exact: float, error: float, n: int, sessions: int | None = None) -> "ResampledEstimate":
        """Return an estimate from its standard error."""
        return cls(exact, tuple(exact + error * z for z in _NORMAL), n, sessions)

    @classmethod
    def log_normal(cls, exact: float, error: float, n: int, sessions: int | None = None) -> "ResampledEstimate":
        """Return a ratio, from the standard error of its logarithm."""
        return cls(exact, tuple(exact * math.exp(error * z) for z in _NORMAL), n, sessions, is_ratio=True)

    def _in_logs(self) -> "ResampledEstimate":
        return replace(self, exact=_log(self.exact), drawn=tuple(map(_log, self.drawn)), is_ratio=False)

    @property
    def is_few(self) -> bool:
        """Return whether there are too few requests or sessions for a verdict."""
        return self.n < LOW_N or (self.sessions is not None and self.sessions < LOW_SESSIONS)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return percentiles of the resamples; beyond their range, those of the normal distribution."""
        if self.is_ratio:
            low, high = self._in_logs().interval(alpha)
            return math.exp(low), math.exp(high)
        tail = alpha / 2
        low, high = quantile(self.drawn, tail), quantile(self.drawn, 1 - tail)
        if tail * len(self.drawn) >= 1 or not math.isfinite(low) or not math.isfinite(high):
            return low, high
        reach = -NormalDist().inv_cdf(tail) * pstdev(self.drawn)
        return min(low, self.exact - reach), max(high, self.exact + reach)

    def p_value(self, limit: float) -> float:
        """Return the two-sided p-value of the hypothesis that the statistic is `limit`."""
        if self.is_ratio:
            return self._in_logs().p_value(_log(limit))
        n = len(self.drawn)
        beyond = min(bisect_right(self.drawn, limit), n - bisect_left(self.drawn, limit))
        if beyond:
            return min(1.0, 2 * beyond / n)
        spread = pstdev(self.drawn) if math.isfinite(self.drawn[0]) and math.isfinite(self.drawn[-1]) else 0.0
        z = abs(self.exact - limit) / spread if spread else math.inf
        return min(2 / n, 2 * (1 - NormalDist().cdf(z)))

    def needed_n(self, limit: float, alpha: float) -> int | None:
        """Return the number of requests with which the interval would just reach the limit; its width shrinks with the
        square root."""
        if self.is_ratio:
            return self._in_logs().needed_n(_log(limit), alpha)
        low, high = self.interval(alpha)
        half, distance = (high - self.exact) if limit > self.exact else (self.exact - low), abs(limit - self.exact)
        if not distance or not math.isfinite(half) or not math.isfinite(distance):
            return None
        needed = math.ceil(self.n * (half / distance) ** 2)
        return max(needed, self.n + 1, LOW_N) if needed < NEVER else None


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


_NORMAL = tuple(NormalDist().inv_cdf((i + 0.5) / RESAMPLES) for i in range(RESAMPLES))
NEVER = 10**9  # a number of requests that is never reached in practice


def holm(p_values: Sequence[float], alphas: Sequence[float]) -> list[float]:
    """Return the level of each test, such that the probability of any error in the whole family is at most its alpha
    (Holm 1979). Starting from the smallest p-value, the level is alpha / (tests left); after the first test that does
    not hold, the level stays the same.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i] / alphas[i])
    levels, left, stopped = [0.0] * len(order), len(order), False
    for i in order:
        levels[i] = alphas[i] / left
        stopped = stopped or p_values[i] > levels[i]
        left -= not stopped
    return levels


def resamples_of(n: int) -> int:
    return max(RESAMPLES_LEAST, min(RESAMPLES, WORK_LIMIT // max(n, 1)))


def draws(n: int, seed: int = 1, sessions: Sequence[Hashable] = ()) -> Iterator[list[int]]:
    """Yield how often each of n rows was drawn, for each resample. `sessions` is the session of each row, and sessions
    are drawn as a whole; if it is empty, rows are drawn one by one."""
    of_row, count = _numbered(n, sessions)
    for times in _drawn(count, resamples_of(n), seed):
        yield [times[number] for number in of_row]


def _numbered(n: int, sessions: Sequence[Hashable]) -> tuple[list[int], int]:
    """Return (the number of each row's session, the number of sessions)."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(sessions or range(n)))}
    return [numbers[name] for name in sessions or range(n)], len(numbers)


@lru_cache(maxsize=1)  # the latencies of a class have the same sessions; 8 MB at most
def _drawn(count: int, resamples: int, seed: int) -> tuple["array[int]", ...]:
    """Return how often each of `count` sessions was drawn, for each resample."""
    draw = random.Random(seed)  # noqa: S311 - resampling, not secrets
    return tuple(_once(draw, count) for _ in range(resamples))


def _once(draw: random.Random, count: int) -> "array[int]":
    times, share = [0] * count, draw.random
    for _ in repeat(None, count):
        times[int(share() * count)] += 1  # equals draw.choices, in two thirds of its time
    return array("H", times)


def bootstrap(
    columns: Mapping[str, Sequence[float]], seed: int = 1, sessions: Sequence[Hashable] = ()
) -> dict[str, list[tuple[float, ...]]]:
    """Return the quantiles of every resample, by column. Columns are paired: a row is the same request in each."""
    of_row, count = _numbered(len(next(iter(columns.values()))), sessions)
    in_order = {name: _in_order(values) for name, values in columns.items()}
    places = {name: (ordered, _picker([of_row[row] for row in order])) for name, (ordered, order) in in_order.items()}
    drawn: dict[str, list[tuple[float, ...]]] = {name: [] for name in columns}
    for each in _drawn(count, resamples_of(len(of_row)), seed):
        times = each.tolist()
        for name, (ordered, pick) in places.items():
            drawn[name].append(_resampled(ordered, pick(times)))
    return drawn


def _picker(numbers: list[int]) -> Callable[[list[int]], tuple[int, ...]]:
    """Return a function that picks the items with these numbers faster than by single lookups."""
    pick = itemgetter(*numbers)
    return pick if len(numbers) > 1 else lambda items: (pick(items),)


def _in_order(values: Sequence[float]) -> tuple[list[float], list[int]]:
    """Return (the sorted values, the row of each)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return [values[row] for row in order], order


def _resampled(ordered: Sequence[float], times: Iterable[int]) -> tuple[float, ...]:
    """Return the QUANTILES of a resample in which each value was drawn `times` times; sorting it would take twice as
    long."""
    ranks = list(accumulate(times))  # number of drawn values at or below each

    def at(rank: int) -> float:
        return ordered[bisect_right(ranks, rank)]

    return tuple(_between(at, ranks[-1], share) for share in QUANTILES)


def minus(value: float, base: float) -> float:
    """Subtract; two infinite values differ by zero."""
    return 0.0 if value == base else value - base


def ratio(value: float, base: float) -> float:
    """Divide; the ratio of equal values is 1, even if both are zero or infinite."""
    if value == base:
        return 1.0
    return value / base if base else math.inf


def differences(
    columns: Mapping[str, Sequence[float]], seed: int = 1, sessions: Sequence[Hashable] = ()
) -> dict[tuple[str, str], tuple[Difference, ...]]:
    """Return (arm, baseline) → a Difference for each of QUANTILES; lower is better. Empty without rows. `sessions` has
    the session of each row."""
    n = len(next(iter(columns.values()), ()))
    if n == 0:
        return {}
    drawn = bootstrap(columns, seed, sessions)
    count = len(set(sessions)) or None
    exact = {name: quantiles(values) for name, values in columns.items()}
    found: dict[tuple[str, str], list[Difference]] = {}
    for base in columns:
        arms = [arm for arm in columns if arm != base]
        for q in range(len(QUANTILES)):
            pairs = {arm: [(a[q], b[q]) for a, b in zip(drawn[arm], drawn[base], strict=True)] for arm in arms}
            estimates, ratios = (
                [
                    ResampledEstimate.of(
                        of(exact[arm][q], exact[base][q]), starmap(of, pairs[arm]), n, count, is_ratio=of is ratio
                    )
                    for arm in arms
                ]
                for of in (minus, ratio)
            )
            for arm, difference in zip(arms, judged(estimates, ratios=ratios), strict=True):
                found.setdefault((arm, base), []).append(difference)
    return {pair: tuple(each) for pair, each in found.items()}


def judged(
    estimates: Sequence[ResampledEstimate],
    lower_is_better: bool = True,
    ratios: Sequence[ResampledEstimate | None] = (),
) -> list[Difference]:
    """Return the differences from one baseline, at Holm's levels over the arms. `ratios` are those of the same
    pairs, if any."""
    levels = holm([each.p_value(0.0) for each in estimates], [1 - CONFIDENCE] * len(estimates))
    return [
        _difference(each, level, lower_is_better, of_both)
        for each, level, of_both in zip(estimates, levels, ratios or [None] * len(estimates), strict=True)
    ]


def _difference(
    estimate: ResampledEstimate, level: float, lower_is_better: bool, of_both: ResampledEstimate | None
) -> Difference:
    low, high = estimate.interval(level)
    sides = (low, high) if lower_is_better else (-high, -low)
    said: Verdict = "too few requests" if estimate.is_few else verdict(*sides)
    relative = None
    if of_both is not None:
        least, most = of_both.interval(level)
        relative = least - 1, most - 1
    return Difference(estimate.exact, low, high, estimate.n, said, relative)


def wilson(hits: float, n: float) -> tuple[float, float]:
    """Return the interval that contains the true share of hits/n with CONFIDENCE (Wilson 1927); (0, 1) if nothing was
    drawn."""
    if not n:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, extra = hits / n, z * z / n
    middle = share + extra / 2
    half = z * math.sqrt(share * (1 - share) / n + extra / n / 4)
    return max(0.0, (middle - half) / (1 + extra)), min(1.0, (middle + half) / (1 + extra))


def widened(middle: float, low: float | None, high: float | None, looks: int) -> tuple[float, float]:
    """Widen an interval with CONFIDENCE so that `looks` such intervals hold jointly (Bonferroni). None is an infinite
    end."""
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    alone, together = (NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / n) for n in (1, looks))
    wider = together / alone
    return middle - (middle - low) * wider, middle + (high - middle) * wider


def widened_ratio(middle: float, low: float, high: float | None, looks: int) -> tuple[float, float]:
    """Widen, by its logarithm, an interval of a positive ratio minus one."""
    ends = _log(1 + low), None if high is None else _log(1 + high)
    least, most = widened(math.log1p(middle), *ends, looks)
    return math.expm1(least), math.expm1(most)


def verdict(low: float, high: float) -> Verdict:
    """Return the verdict of an interval of (arm − baseline), where lower is better."""
    if high < 0:
        return "better"
    if low > 0:
        return "worse"
    return "not distinguishable"
