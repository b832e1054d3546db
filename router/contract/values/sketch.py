"""A mergeable sketch of a distribution: log buckets with 2 % relative error. Pure.

A sketch is {bucket: count}. Bucket i holds (γ^(i−1), γ^i] with γ = (1 + ε)/(1 − ε); its value 2γ^i/(γ + 1) is within ε
of everything in the bucket (DDSketch: Masson, Rim, Lee, VLDB 2019). Sketches of several routers are added bucket by
bucket. The ddsketch package is not used because its sketches are objects with another format; this sketch is the dict
stored in Redis.
"""

from collections.abc import Iterable, Mapping
from math import ceil, log2
from typing import Final

RELATIVE_ERROR = 0.02
SMALLEST: Final = 0.001  # smaller values count as zero, in the unit of the sketch

Sketch = dict[int, int]

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG: Final = 1 / log2(_GAMMA)
ZERO: Final = ceil(log2(SMALLEST) * _PER_LOG)  # bucket of zero


def bucket(value: float) -> int:
    return ceil(log2(value) * _PER_LOG) if value > SMALLEST else ZERO


def value_of(index: int) -> float:
    return 0.0 if index <= ZERO else 2 * _GAMMA**index / (_GAMMA + 1)


def add(sketch: Sketch, value: float) -> None:
    add_each(((sketch, value),))


def add_each(values: Iterable[tuple[Sketch, float]]) -> None:
    """Add each value to its own sketch."""
    for sketch, value in values:
        index = ceil(log2(value) * _PER_LOG) if value > SMALLEST else ZERO
        sketch[index] = sketch.get(index, 0) + 1


def merge(sketches: Iterable[Mapping[int, int]]) -> Sketch:
    """Return the sum of the sketches."""
    total: Sketch = {}
    for sketch in sketches:
        for index, count in sketch.items():
            total[index] = total.get(index, 0) + count
    return total


def count(sketch: Mapping[int, int]) -> int:
    return sum(sketch.values())


def quantile(sketch: Mapping[int, int], share: float) -> float | None:
    """Return the value below which `share` (0–1) of all values lie, within 2 %; None for an empty sketch."""
    total = count(sketch)
    if not total:
        return None
    rank = share * (total - 1)
    seen = 0
    for index in sorted(sketch):
        seen += sketch[index]
        if seen > rank:
            return value_of(index)
    return value_of(max(sketch))
