"""Contention of several GPUs that copy from the same GPU at the same time. Exact.
A copy meets X others at its source, X ~ Binomial(N - 2, 1/(N - 1)): each of the N - 2 others is at one of its N - 1
sources.
"""

import math
from functools import lru_cache


@lru_cache(maxsize=256)
def met(ranks: int) -> tuple[float, ...]:
    """Return the probability of X = 0, 1, … N - 2 ([P] table 2 lists them for C = 1 + X)."""
    return _binomial(ranks - 2, 1 / (ranks - 1))


@lru_cache(maxsize=256)
def _met_in_layer(ranks: int) -> tuple[float, ...]:
    """Return the distribution of the sum of X over the N - 1 copies of a layer, which is also binomial."""
    return _binomial((ranks - 1) * (ranks - 2), 1 / (ranks - 1))


def _binomial(n: int, p: float) -> tuple[float, ...]:
    if p == 1.0:  # two GPUs never meet another
        return (0.0,) * n + (1.0,)
    logs = (math.lgamma(n + 1) - math.lgamma(x + 1) - math.lgamma(n - x + 1) for x in range(n + 1))
    return tuple(math.exp(log + x * math.log(p) + (n - x) * math.log1p(-p)) for x, log in enumerate(logs))


def layer_ms(
    window_ms: float, copy_ms: float, ranks: int, *, sliced: bool, in_flight: int = 2, slice_share: float = 0.0
) -> float:
    """Return the mean duration of a layer that computes for `window_ms` and continues once all its copies have arrived.
    Whole experts: a copy of tau = copy/(N - 1) takes tau (1 + X/2), as it waits for half of each copy that it meets.
    Slices in turn, two in flight: X <= 1 costs nothing, and more costs only if both sources are met by more. As [P]
    argues for two, k slices in flight hide X < k, unless all k sources are met by more; with one in flight, a copy
    waits like whole experts. The last slice of a copy, `slice_share` of it, is followed by no other slice and waits
    like a whole copy; a single slice is a whole pull.
    """
    each_ms = copy_ms / (ranks - 1)
    pulled = tuple((share, copy_ms + each_ms * x / 2) for x, share in enumerate(_met_in_layer(ranks)))
    if not sliced or in_flight == 1:
        return _exposed(window_ms, pulled)
    last = min(1.0, slice_share)
    late = sum(met(ranks)[in_flight:]) ** in_flight
    turns = ((1 - late, copy_ms), (late, copy_ms + each_ms / 2))
    return (1 - last) * _exposed(window_ms, turns) + last * _exposed(window_ms, pulled)


def _exposed(window_ms: float, copies: tuple[tuple[float, float], ...]) -> float:
    """Return the mean duration with the exposed parts of the copies, given as (probability, duration)."""
    return window_ms + sum(share * max(0.0, copied - window_ms) for share, copied in copies)
