"""How far two chains of hashes are the same. Equal hash, equal chain up to there: so it takes a bisection."""

from collections.abc import Sequence


def common(own: Sequence[int], hashes: Sequence[int], start: int, end: int) -> int:
    """How many of `own` are the same as `hashes` from `start` up to `end`; the first one is known to be."""
    high = end - start - 1  # not by min(), which costs as much as all else here
    if high >= len(own):
        high = len(own) - 1
    if own[high] == hashes[start + high]:
        return high + 1
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if own[middle] == hashes[start + middle]:
            low = middle
        else:
            high = middle
    return high
