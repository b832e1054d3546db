"""Comparisons of the two arms that remain valid however often they are evaluated. Pure. Sessions, not requests, are
assigned to arms: sessions are independent, the requests of a session are not. The standard error is computed from
cells, 64 buckets of sessions by hash, as in a cluster-randomised trial (Liang and Zeger 1986).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from router.contract.redis.delivery import Moments

TUNED_FOR = 100  # approximate number of requests at which the confidence sequence is narrowest
LEAST_REQUESTS = 30  # smallest number of requests in an arm
LEAST_CELLS = 8  # smallest number of effective cells in an arm
OWN_CELLS = 16  # effective cells above which an arm's variance is computed from its own cells alone


# Tests whether the candidate has more than its share of errors and refusals
EXCESSES = (1.25, 1.6, 2.0, 3.0, 5.0, 10.0, 30.0)  # multiples of the allowed rate for the candidate


@dataclass(frozen=True, slots=True)
class Counted:
    """Sessions of one arm, and those with an error (or a refusal)."""

    sessions: int
    hits: int

    @property
    def rate(self) -> float:
        return self.hits / self.sessions if self.sessions else 0.0


def e_value(candidate: Counted, control: Counted, ratio: float) -> float:
    """Return the evidence that the candidate's rate is above `ratio` × control's.
    Each hit falls in one of the arms: at that ratio in the candidate's with probability p, at a higher rate with a
    higher probability. The mean of the likelihood ratios of these against p is an e-value: the probability that it ever
    reaches 1/α is at most α (Ramdas, Grünwald, Vovk and Shafer 2023), also for lower rates.
    """
    if not candidate.sessions or not control.sessions:
        return 1.0
    hits = (candidate.hits, control.hits)
    allowed = _shares(ratio, candidate, control)
    logarithms = [_log_ratio(hits, _shares(ratio * excess, candidate, control), allowed) for excess in EXCESSES]
    highest = max(logarithms)
    if highest > 700:
        return math.inf
    return math.exp(highest) * sum(math.exp(logarithm - highest) for logarithm in logarithms) / len(logarithms)


def _shares(ratio: float, candidate: Counted, control: Counted) -> tuple[float, float]:
    """Return the probabilities that a hit falls in the candidate's arm and in control."""
    weight = ratio * candidate.sessions
    return weight / (weight + control.sessions), control.sessions / (weight + control.sessions)


def _log_ratio(hits: Sequence[int], found: Sequence[float], allowed: Sequence[float]) -> float:
    return sum(count * math.log(ours / theirs) for count, ours, theirs in zip(hits, found, allowed, strict=True))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Candidate minus control: a difference of means of ln ms, or of shares."""

    difference: float
    se: float
    n: tuple[int, int]  # requests: candidate, control
    cells: tuple[float, float]  # effective cells: candidate, control
    control: float  # mean of control

    @property
    def is_enough(self) -> bool:
        return min(self.n) >= LEAST_REQUESTS and min(self.cells) >= LEAST_CELLS

    @property
    def information(self) -> float:
        """Return the number of independent differences between the arms that carries the same information."""
        return self.n[0] * self.n[1] / sum(self.n) if sum(self.n) else 0.0

    def lower(self, alpha: float) -> float:
        """Return a lower limit that holds at all times simultaneously, except with probability `alpha`."""
        return self.difference - self._half_width(alpha)

    def upper(self, alpha: float) -> float:
        return self.difference + self._half_width(alpha)

    def _half_width(self, alpha: float) -> float:
        return half_width(self.se, self.information, alpha)


def half_width(se: float, n: float, alpha: float) -> float:
    """Return the half-width of the asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
    2024, 2.2)."""
    if not math.isfinite(se) or n <= 0:
        return math.inf
    squared = rho_squared(alpha)
    deviations = math.sqrt(2 * (n * squared + 1) / (n * squared) * math.log1p(math.sqrt(n * squared + 1) / (2 * alpha)))
    return se * deviations


def rho_squared(alpha: float) -> float:
    """Return the ρ² for which the sequence is narrowest at TUNED_FOR."""
    logarithm = -2 * math.log(2 * alpha)
    return (logarithm + math.log1p(logarithm)) / TUNED_FOR


def effective_cells(counts: Sequence[int]) -> float:
    """Return the number of equal cells with the same weight: (Σn)²/Σn² (Kish 1965)."""
    squares = sum(n * n for n in counts)
    return sum(counts) ** 2 / squares if squares else 0.0


def adjusted(candidate: Sequence[Moments], control: Sequence[Moments]) -> Estimate | None:
    """Return the difference of ln ms at equal prompt lengths; None while an arm is empty. Each Moments is a cell."""
    arms = (_summed(candidate), _summed(control))
    if not all(one.n for one in arms):
        return None
    slope = pooled_slope(arms)
    at_mean_x, found = slope * arms[1].x / arms[1].n, []
    for cells, one in zip((candidate, control), arms, strict=True):
        level = (one.y - slope * one.x) / one.n
        found.append(_Arm(level + at_mean_x, [(cell.y - slope * cell.x - cell.n * level, cell.n) for cell in cells]))
    return _estimate(*found)


def pooled_slope(arms: Sequence[Moments]) -> float:
    """Return the slope of ln ms by ln prompt tokens within the arms; 0 if all prompts are equally long."""
    spread = sum(arm.xx - arm.x * arm.x / arm.n for arm in arms)
    together = sum(arm.xy - arm.x * arm.y / arm.n for arm in arms)
    return together / spread if spread > 1e-9 * sum(arm.xx for arm in arms) else 0.0


def shares(candidate: Sequence[tuple[int, int]], control: Sequence[tuple[int, int]]) -> Estimate | None:
    """Return the difference of shares, from (hits, n) of each cell; None while an arm is empty."""
    arms = [(sum(hits for hits, _ in cells), sum(n for _, n in cells)) for cells in (candidate, control)]
    if not all(n for _, n in arms):
        return None
    found = []
    for cells, (hits, n) in zip((candidate, control), arms, strict=True):
        # A few hits show too little variance, so it is at least that of a binomial (Agresti and Caffo 2000).
        smoothed = (hits + 1) / (n + 2)
        least = smoothed * (1 - smoothed) / (n + 2)
        found.append(_Arm(hits / n, [(hit - hits / n * one, one) for hit, one in cells], least))
    return _estimate(*found)


class _Arm:
    """One arm: its level, and the sum of residuals and the number of requests for each cell."""

    def __init__(self, level: float, cells: Sequence[tuple[float, int]], least_variance: float = 0.0) -> None:
        filled = [(residual, n) for residual, n in cells if n]
        self.level, self.n, self.count = level, sum(n for _, n in filled), len(filled)
        self.effective = effective_cells([n for _, n in filled])
        self._squares = sum(residual * residual for residual, _ in filled)
        self._least = least_variance

    @property
    def per_request(self) -> float:
        """Return the variance per request, including the part that requests of one session share."""
        return self.count / (self.count - 1) * self._squares / self.n if self.count > 1 else math.inf

    def variance(self, other: "_Arm") -> float:
        """Return the variance of the mean; with few cells, at least as much per request as in the other arm."""
        own, others = self.per_request, other.per_request
        return max((own if self.effective >= OWN_CELLS else max(own, others)) / self.n, self._least)


def _estimate(candidate: _Arm, control: _Arm) -> Estimate:
    return Estimate(
        candidate.level - control.level,
        math.sqrt(candidate.variance(control) + control.variance(candidate)),
        (candidate.n, control.n),
        (candidate.effective, control.effective),
        control.level,
    )


def _summed(cells: Sequence[Moments]) -> Moments:
    columns = ((cell.n, cell.y, cell.yy, cell.x, cell.xx, cell.xy) for cell in cells)
    n, *sums = map(sum, zip((0,) * 6, *columns, strict=True))
    return Moments(int(n), *map(float, sums))
