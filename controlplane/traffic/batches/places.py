"""Chooses the batches with a place, whose lines take turns, and the one that gives its place up for another. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

PLACES = 32  # batches whose lines are in memory
PLACES_OF_KEY = 2
LEAST_S = 10.0  # shortest time that a batch keeps its place, as the file of the next one has to be read
TURN_S = 300.0  # time after which a batch that can send gives way to a key without a place


@dataclass(frozen=True, slots=True)
class Queued:
    pk: int
    key: int


@dataclass(frozen=True, slots=True)
class Placed:
    pk: int
    key: int
    for_s: float  # time for which it has had its place
    waits: bool  # whether it waits for a reason of its own
    leaves: bool  # whether it leaves once its lines in flight have their answers


def claims(placed: Sequence[Placed], queued: Sequence[Queued]) -> list[int]:
    """Return the batches that get a free place, those of keys with the fewest first; `queued` is in the order of
    waiting."""
    of_key = Counter(place.key for place in placed)
    chosen: list[int] = []
    left = list(queued)
    while left and len(placed) + len(chosen) < PLACES:
        first = min(left, key=lambda batch: of_key[batch.key])  # the longest waiting among equals
        if of_key[first.key] >= PLACES_OF_KEY:
            break
        left.remove(first)
        of_key[first.key] += 1
        chosen.append(first.pk)
    return chosen


def leaver(placed: Sequence[Placed], queued: Sequence[Queued]) -> int | None:
    """Return the batch that gives its place up for one that got none; None while all may stay."""
    if not queued or any(place.leaves for place in placed):
        return None
    of_key = Counter(place.key for place in placed)
    rest = [place for place in placed if place.for_s >= LEAST_S]
    if len(placed) < PLACES:  # With places left, only the limit per key was in the way.
        rest = [place for place in rest if place.waits and place.key in {batch.key for batch in queued}]
    else:
        new = any(not of_key[batch.key] for batch in queued)
        rest = [place for place in rest if place.waits or (new and (of_key[place.key] > 1 or place.for_s >= TURN_S))]
    return max(rest, key=lambda place: (place.waits, of_key[place.key], place.for_s)).pk if rest else None
