"""A router's choice of experts: their popularity follows a Zipf law, and they are assigned to GPUs regardless of
popularity."""

import math
from functools import lru_cache
from statistics import fmean, pvariance


@lru_cache(maxsize=64)
def picked(experts: int, top_k: int, exponent: float) -> tuple[float, ...]:
    """Return the probability, 0–1, that a token uses each expert, the most popular first; the sum is `top_k`."""
    popularity = [(rank + 1) ** -exponent for rank in range(experts)]
    sure = 0  # experts that every token uses
    while sure < top_k and popularity[sure] * (top_k - sure) > sum(popularity[sure:]):
        sure += 1
    rest = sum(popularity[sure:])
    return (1.0,) * sure + tuple(one / rest * (top_k - sure) for one in popularity[sure:])


def unused_share(experts: int, top_k: int, exponent: float, tokens: float) -> float:
    """Return the share of the experts, 0–1, that none of the given number of tokens uses."""
    return fmean(math.pow(1 - one, tokens) for one in picked(experts, top_k, exponent))


def spread_of_ranks(experts: int, top_k: int, exponent: float, ranks: int) -> float:
    """Return the coefficient of variation of the GPUs' computing times for the experts that they hold."""
    chances, held = picked(experts, top_k, exponent), experts / ranks
    variance = held * pvariance(chances) * (experts - held) / (experts - 1)
    return math.sqrt(max(variance, 0.0)) / (held * top_k / experts)
