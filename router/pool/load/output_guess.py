"""Estimates a request's output tokens from the latest answers of its pool. Pure."""

from typing import Final

UNKNOWN = 512  # output tokens expected before any answer has ended
WEIGHT: Final = 1 / 64  # weight of one answer in the mean


class OutputGuess:
    __slots__ = ("_mean",)

    def __init__(self) -> None:
        self._mean: float | None = None

    def answered(self, output_tokens: int | None) -> None:
        if not output_tokens:
            return
        mean = self._mean
        self._mean = output_tokens if mean is None else mean + WEIGHT * (output_tokens - mean)

    def tokens(self, limit: int | None) -> float:
        """Estimate the output tokens; `limit` is the request's max_tokens."""
        guess = UNKNOWN if self._mean is None else self._mean
        return guess if limit is None else min(guess, limit)
