"""Finds the length of the common beginning of two hash chains, by bisection: equal hashes mean equal chains up to that
point."""

from collections.abc import Sequence


def common(own: Sequence[int], hashes: Sequence[int], start: int, end: int) -> int:
    """Count the equal hashes of `own` and `hashes` between `start` and `end`; the first is known to be equal."""
    high = end - start - 1  # min() would take as long as the search
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
