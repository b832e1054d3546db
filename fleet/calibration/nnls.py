"""Non-negative least squares by the active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974,
chapter 23) on the normal equations, as Bro and de Jong do it (J. Chemometrics 11, 1997).

A handful of unknowns and some dozens of rows need no library.
"""

import math
from collections.abc import Sequence

_RIDGE = 1e-12  # part of a column's square; makes equal columns share their weight, and avoids division by zero
_LEAST_GAIN = 1e-11

Matrix = list[list[float]]


def nnls(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Return the x ≥ 0 with the smallest Σ(rows·x - wanted)²; a column of zeros gets 0."""
    width = len(rows[0])
    scale = [math.sqrt(sum(row[at] ** 2 for row in rows)) or 1.0 for at in range(width)]
    scaled = [[value / size for value, size in zip(row, scale, strict=True)] for row in rows]
    products = [[sum(row[i] * row[j] for row in scaled) for j in range(width)] for i in range(width)]
    for at in range(width):
        products[at][at] += _RIDGE
    target = [sum(row[at] * value for row, value in zip(scaled, wanted, strict=True)) for at in range(width)]
    return [value / size for value, size in zip(_solve(products, target), scale, strict=True)]


def _solve(products: Matrix, target: list[float]) -> list[float]:
    found = [0.0] * len(target)
    used: list[int] = []
    for _ in range(3 * len(target)):
        entering = _entering(products, target, found, used)
        if entering is None:
            break
        used.append(entering)
        found = _step(products, target, found, used)
    return found


def _entering(products: Matrix, target: list[float], found: list[float], used: list[int]) -> int | None:
    """Return the unknown, among those at zero, that would improve the sum most."""
    size = max(map(abs, target)) or 1.0
    gains = {
        at: target[at] - sum(map(float.__mul__, products[at], found)) for at in range(len(target)) if at not in used
    }
    best = max(gains, key=gains.__getitem__, default=None)
    return best if best is not None and gains[best] > _LEAST_GAIN * size else None


def _step(products: Matrix, target: list[float], found: list[float], used: list[int]) -> list[float]:
    """Move to the optimum of the unknowns in use; drop any that reach zero on the way."""
    while used:
        best = eliminate([[products[i][j] for j in used] for i in used], [target[i] for i in used])
        if min(best) > 0:
            found = [0.0] * len(target)
            for at, value in zip(used, best, strict=True):
                found[at] = value
            return found
        share = min(found[at] / (found[at] - value) for at, value in zip(used, best, strict=True) if value <= 0)
        for at, value in zip(used, best, strict=True):
            found[at] += share * (value - found[at])
        gone = {at for at, value in zip(used, best, strict=True) if value <= 0 and found[at] <= _LEAST_GAIN}
        used[:] = [at for at in used if at not in gone]
        found = [value if at in used else 0.0 for at, value in enumerate(found)]
    return found


def eliminate(matrix: Matrix, right: list[float]) -> list[float]:
    """Solve by Gaussian elimination; a symmetric positive matrix needs no pivoting."""
    size = len(right)
    for at in range(size):
        for below in range(at + 1, size):
            share = matrix[below][at] / matrix[at][at]
            for column in range(at, size):
                matrix[below][column] -= share * matrix[at][column]
            right[below] -= share * right[at]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(matrix[at][column] * found[column] for column in range(at + 1, size))
        found[at] = (right[at] - rest) / matrix[at][at]
    return found
