"""Accuracy of an index: predicted cached tokens compared with those that engines report."""

from array import array
from collections import deque
from typing import Final

KEPT: Final = 1_000  # requests
JUDGED: Final = 64  # latest requests that `recent_error` covers
FEWEST = 16  # smallest number of requests from which `recent_error` is computed


class Accuracy:
    """The prediction error over an instance's latest requests."""

    __slots__ = (
        "_actual",
        "_next",
        "_predicted",
        "_recent",
        "_recent_prompt",
        "_recent_wrong",
        "actual",
        "error",
        "n",
        "predicted",
    )

    def __init__(self) -> None:
        self._predicted = array("I")
        self._actual = array("I")
        self._next = 0  # position of the oldest request once KEPT is reached
        self._recent: deque[tuple[int, int]] = deque()  # latest (|predicted − actual|, prompt tokens)
        self._recent_wrong = self._recent_prompt = 0  # sums over `_recent`
        self.n = 0  # requests in the sums
        self.predicted = 0  # tokens
        self.actual = 0
        self.error = 0  # sum of |predicted − actual|

    def add(self, predicted: int, actual: int, prompt: int) -> None:
        """Add a request, in tokens; `prompt` is the length of the whole prompt."""
        wrong, position = abs(predicted - actual), self._next
        if self.n < KEPT:
            self._predicted.append(predicted)
            self._actual.append(actual)
            self.n += 1
        else:
            self._forget(position)
            self._predicted[position], self._actual[position] = predicted, actual
        self._next = (position + 1) % KEPT
        self.predicted += predicted
        self.actual += actual
        self.error += wrong
        recent = self._recent
        recent.append((wrong, prompt))
        self._recent_wrong += wrong
        self._recent_prompt += prompt
        if len(recent) > JUDGED:
            oldest_wrong, oldest_prompt = recent.popleft()
            self._recent_wrong -= oldest_wrong
            self._recent_prompt -= oldest_prompt

    def _forget(self, position: int) -> None:
        predicted, actual = self._predicted[position], self._actual[position]
        self.predicted -= predicted
        self.actual -= actual
        self.error -= abs(predicted - actual)

    @property
    def ratio(self) -> float | None:
        """Return predicted over actual tokens; None if nothing was cached."""
        return self.predicted / self.actual if self.actual else None

    def recent_error(self) -> float | None:
        """Return the sum of |predicted − actual| over the prompt tokens of the latest requests; None if they are too
        few."""
        if self.n < FEWEST:
            return None
        return self._recent_wrong / max(self._recent_prompt, 1)
