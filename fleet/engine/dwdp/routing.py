"""Which experts a router picks: by a Zipf law over their popularity, dealt to the GPUs in no order of it."""

import math
from functools import lru_cache
from statistics import fmean, pvariance


@lru_cache(maxsize=64)
def picked(experts: int, top_k: int, exponent: float) -> tuple[float, ...]:
    """How likely a token is to use each expert, 0–1, the most popular first; together `top_k`."""
    popularity = [(rank + 1) ** -exponent for rank in range(experts)]
    sure = 0  # experts that every token uses
    while sure < top_k and popularity[sure] * (top_k - sure) > sum(popularity[sure:]):
        sure += 1
    rest = sum(popularity[sure:])
    return (1.0,) * sure + tuple(one / rest * (top_k - sure) for one in popularity[sure:])


def unused_share(experts: int, top_k: int, exponent: float, tokens: float) -> float:
    """Of the experts, 0–1: none of so many tokens uses them."""
    return fmean(math.pow(1 - one, tokens) for one in picked(experts, top_k, exponent))


def spread_of_ranks(experts: int, top_k: int, exponent: float, ranks: int) -> float:
    """The coefficient of variation of what the GPUs of a group compute for the experts that they hold."""
    chances, held = picked(experts, top_k, exponent), experts / ranks
    variance = held * pvariance(chances) * (experts - held) / (experts - 1)
    return math.sqrt(max(variance, 0.0)) / (held * top_k / experts)
