"""Which batches have a place among those whose lines take turns, and which one gives its place up for another. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

PLACES = 32  # batches whose lines are in memory
PLACES_OF_KEY = 2
LEAST_S = 10.0  # least time for which a batch keeps its place: its file is read again for the next one
TURN_S = 300.0  # after which a batch that can send makes room for a key without a place


@dataclass(frozen=True, slots=True)
class Queued:
    pk: int
    key: int


@dataclass(frozen=True, slots=True)
class Placed:
    pk: int
    key: int
    for_s: float  # since it has its place
    waits: bool  # for a reason of its own
    leaves: bool  # once its lines under way have their answers


def claims(placed: Sequence[Placed], queued: Sequence[Queued]) -> list[int]:
    """The batches that get a free place, those of keys with the fewest first; `queued` by when they began to wait."""
    of_key = Counter(place.key for place in placed)
    chosen: list[int] = []
    left = list(queued)
    while left and len(placed) + len(chosen) < PLACES:
        first = min(left, key=lambda batch: of_key[batch.key])  # among equals, the longest waiting
        if of_key[first.key] >= PLACES_OF_KEY:
            break
        left.remove(first)
        of_key[first.key] += 1
        chosen.append(first.pk)
    return chosen


def leaver(placed: Sequence[Placed], queued: Sequence[Queued]) -> int | None:
    """The batch that gives up its place for one that got none; None while everyone may stay."""
    if not queued or any(place.leaves for place in placed):
        return None
    of_key = Counter(place.key for place in placed)
    rest = [place for place in placed if place.for_s >= LEAST_S]
    if len(placed) < PLACES:  # then it is its own key that has no place left
        rest = [place for place in rest if place.waits and place.key in {batch.key for batch in queued}]
    else:
        new = any(not of_key[batch.key] for batch in queued)
        rest = [place for place in rest if place.waits or (new and (of_key[place.key] > 1 or place.for_s >= TURN_S))]
    return max(rest, key=lambda place: (place.waits, of_key[place.key], place.for_s)).pk if rest else None
