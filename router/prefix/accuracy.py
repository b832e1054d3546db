"""How well an index predicts: cached tokens as predicted against those that the engines then report."""

from array import array

KEPT = 1_000  # requests
JUDGED = 64  # of them, the latest
FEWEST = 16  # requests before there is a judgement


class Accuracy:
    """The last requests of one instance."""

    __slots__ = ("_actual", "_next", "_predicted", "_prompt", "_recent", "actual", "error", "n", "predicted")

    def __init__(self) -> None:
        self._predicted = array("I")
        self._actual = array("I")
        self._prompt = array("I")
        self._next = 0  # the place of the oldest, once there are KEPT
        self._recent: float | None = None  # recent_error, until there is another answer
        self.n = 0  # requests that the sums are of
        self.predicted = 0  # tokens
        self.actual = 0
        self.error = 0  # sum of |predicted − actual|

    def add(self, predicted: int, actual: int, prompt: int) -> None:
        """In tokens; `prompt`: how many the whole prompt has."""
        if self.n < KEPT:
            for kept in (self._predicted, self._actual, self._prompt):
                kept.append(0)
            self.n += 1
        else:
            self._count(self._predicted[self._next], self._actual[self._next], -1)
        place = self._next
        self._predicted[place], self._actual[place], self._prompt[place] = predicted, actual, prompt
        self._next = (place + 1) % KEPT
        self._recent = None
        self._count(predicted, actual, 1)

    def _count(self, predicted: int, actual: int, sign: int) -> None:
        self.predicted += sign * predicted
        self.actual += sign * actual
        self.error += sign * abs(predicted - actual)

    @property
    def ratio(self) -> float | None:
        """Predicted over actual; None when nothing was cached."""
        return self.predicted / self.actual if self.actual else None

    def recent_error(self) -> float | None:
        """Sum of |predicted − actual| over the prompts' tokens, of the latest requests; None of too few."""
        if self.n < FEWEST:
            return None
        if self._recent is None:
            self._recent = self._judged()
        return self._recent

    def _judged(self) -> float:
        places = [(self._next - back) % self.n for back in range(1, min(JUDGED, self.n) + 1)]
        wrong = sum(abs(self._predicted[place] - self._actual[place]) for place in places)
        return wrong / max(sum(self._prompt[place] for place in places), 1)
