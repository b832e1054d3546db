"""How well an index predicts: cached tokens predicted, against those that engines report."""

from array import array

KEPT = 1_000  # requests
JUDGED = 64  # latest requests that `recent_error` covers
FEWEST = 16  # requests before `recent_error` is known


class Accuracy:
    """Prediction error over the last requests of one instance."""

    __slots__ = ("_actual", "_next", "_predicted", "_prompt", "_recent", "actual", "error", "n", "predicted")

    def __init__(self) -> None:
        self._predicted = array("I")
        self._actual = array("I")
        self._prompt = array("I")
        self._next = 0  # position of the oldest, once there are KEPT
        self._recent: float | None = None  # recent_error, until the next answer
        self.n = 0  # requests in the sums
        self.predicted = 0  # tokens
        self.actual = 0
        self.error = 0  # sum of |predicted − actual|

    def add(self, predicted: int, actual: int, prompt: int) -> None:
        """Add one request, in tokens; `prompt`: the whole prompt."""
        if self.n < KEPT:
            for kept in (self._predicted, self._actual, self._prompt):
                kept.append(0)
            self.n += 1
        else:
            self._count(self._predicted[self._next], self._actual[self._next], -1)
        position = self._next
        self._predicted[position], self._actual[position], self._prompt[position] = predicted, actual, prompt
        self._next = (position + 1) % KEPT
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
        """Sum of |predicted − actual| over the prompts' tokens, of the latest requests; None when there are too few."""
        if self.n < FEWEST:
            return None
        if self._recent is None:
            self._recent = self._error_share()
        return self._recent

    def _error_share(self) -> float:
        latest = [(self._next - back) % self.n for back in range(1, min(JUDGED, self.n) + 1)]
        wrong = sum(abs(self._predicted[one] - self._actual[one]) for one in latest)
        return wrong / max(sum(self._prompt[one] for one in latest), 1)
