"""The time of a prompt by its length and cached part, fitted to prompts of equal engines. Pure.

    seconds = a·new + b·new·(cached + new/2) + c·prompt + d, with no negative factor

Least squares of the relative errors, so that short prompts count as much as long ones. A term that earlier terms
already explain, or that has a negative factor, is left out.
"""

from collections.abc import Sequence
from math import sqrt

FORGET = 0.99  # weight of a prompt relative to the following one
LEAST_SHARE = 0.0025  # lower bound of the unexplained part of a term's square; below it, terms cannot be separated
TERMS = 4

Terms = tuple[float, float, float, float]  # new, new·(cached + new/2), prompt, 1
Factors = tuple[float, float, float, float]


def terms(new: int, cached: int) -> Terms:
    return float(new), new * (cached + new / 2), float(new + cached), 1.0


class PromptFit:
    def __init__(self) -> None:
        self._squares = [[0.0] * TERMS for _ in range(TERMS)]
        self._sums = [0.0] * TERMS

    def add(self, row: Terms, seconds: float) -> None:
        relative = [term / seconds for term in row]
        for place, value in enumerate(relative):
            self._sums[place] = self._sums[place] * FORGET + value
            squares = self._squares[place]
            for other in range(TERMS):
                squares[other] = squares[other] * FORGET + value * relative[other]

    def fitted(self) -> Factors:
        """Return the factors; zeros without prompts."""
        used = list(range(TERMS))
        while True:
            found = self._solved(used)
            least = min(found, key=found.__getitem__, default=None)
            if least is None or found[least] >= 0:
                return found.get(0, 0.0), found.get(1, 0.0), found.get(2, 0.0), found.get(3, 0.0)
            used.remove(least)

    def _solved(self, used: Sequence[int]) -> dict[int, float]:
        """Solve for the factors of separable terms (elimination, each term scaled to a square of 1)."""
        scale = {place: sqrt(self._squares[place][place]) for place in used if self._squares[place][place] > 0}
        # One row per term: its columns from the diagonal on, and the sum
        rows: list[tuple[int, dict[int, float], float]] = []
        for place, scaled in scale.items():
            row = {other: self._squares[place][other] / scaled / scale[other] for other in scale}
            total = self._sums[place] / scaled
            for before, above, value in rows:
                factor = row[before] / above[before]
                row = {other: row[other] - factor * above[other] for other in scale}
                total -= factor * value
            if row[place] > LEAST_SHARE:
                rows.append((place, row, total))
        found: dict[int, float] = {}
        for place, row, total in reversed(rows):
            found[place] = (total - sum(row[other] * value for other, value in found.items())) / row[place]
        return {place: value / scale[place] for place, value in found.items()}
