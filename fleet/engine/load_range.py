"""The load for which an engine's constants are known, and how much of another load lies outside. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

EDGE = 0.05  # share of the requests beyond each end that does not widen a range
TOLERANCE = 1.25  # factor beyond an end that still counts as inside
MOST_OUTSIDE = 0.2  # share of a load's requests from which its outside part matters


@dataclass(frozen=True, slots=True)
class LoadRange:
    """Range of a load, from the 5th to the 95th percentile of its requests."""

    in_flight: tuple[int, int]  # requests on the instance at an arrival, the new one included
    new_tokens: tuple[int, int]  # uncached tokens of a prompt


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request served on one instance."""

    begin_s: float
    end_s: float
    new_tokens: int


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """A load, with one value per request."""

    in_flight: Sequence[int]
    new_tokens: Sequence[int]

    @classmethod
    def of(cls, instances: Sequence[Sequence[ServedRequest]]) -> "RequestLoad":
        flights = [count for served in instances for count in in_flight(served)]
        return cls(flights, [one.new_tokens for served in instances for one in served])

    @property
    def range(self) -> LoadRange:
        return LoadRange(_range(self.in_flight), _range(self.new_tokens))

    def outside(self, known: LoadRange) -> tuple[str, ...]:
        """Return the parts of this load beyond the known range, in words; empty if none matters."""
        found = (
            _beyond("requests at once on an instance", known.in_flight, self.in_flight),
            _beyond("new tokens in a prompt", known.new_tokens, self.new_tokens),
        )
        return tuple(text for text in found if text)


def in_flight(served: Sequence[ServedRequest]) -> list[int]:
    """Return how many requests are in flight when each of them begins, in order of time."""
    begins, ends = sorted(one.begin_s for one in served), sorted(one.end_s for one in served)
    return [bisect_right(begins, at) - bisect_left(ends, at) for at in begins]


def _range(values: Sequence[int]) -> tuple[int, int]:
    ordered = sorted(values)
    edge = int(EDGE * len(ordered))
    return ordered[edge], ordered[-1 - edge]


def _beyond(name: str, known: tuple[int, int], values: Sequence[int]) -> str:
    low, high = known
    above, below = (
        sum(value > high * TOLERANCE for value in values),
        sum(value < low / TOLERANCE for value in values),
    )
    if max(above, below) <= MOST_OUTSIDE * len(values):
        return ""
    side = f"more than {high:,}" if above >= below else f"fewer than {low:,}"
    seen = f"{max(above, below):,} of {len(values):,} requests see {side} {name}"
    return f"{seen}; the calibration did not, and its error is not known there"
