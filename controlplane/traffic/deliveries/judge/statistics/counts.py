"""Tests whether the candidate has more than its share of errors and refusals. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Evidence that the candidate's rate is above `ratio` × control's.

    Each hit falls in one of the arms: at that ratio in the candidate's with a probability of p, at a rate higher by an
    excess with a higher one. The mean of the likelihood ratios of these against p is an e-value: the probability that
    it ever reaches 1/α is at most α (Ramdas, Grünwald, Vovk and Shafer 2023), also for lower rates.
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
    """The probabilities that a hit falls in the candidate's arm and in control."""
    weight = ratio * candidate.sessions
    return weight / (weight + control.sessions), control.sessions / (weight + control.sessions)


def _log_ratio(hits: Sequence[int], found: Sequence[float], allowed: Sequence[float]) -> float:
    return sum(count * math.log(ours / theirs) for count, ours, theirs in zip(hits, found, allowed, strict=True))
