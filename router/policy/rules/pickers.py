"""Who is picked of those that were scored, by what each lacks to the best possible score."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from router.policy.view import View, by_turn, least

Picker = Callable[[View, Sequence[float], float], int]  # (view, what each lacks, the most that one can lack)


def best(view: View, lacking: Sequence[float], most: float) -> int:
    """The one that lacks least, ties by the draw."""
    return least(view, lacking)


def weighted_draw(view: View, lacking: Sequence[float], most: float) -> int:
    """Each with a probability in proportion to its score."""
    places = view.instances.order
    sums = list(accumulate(max(most - lacking[place], 0.0) for place in places))
    mark = view.draw * sums[-1]
    if not sums[-1]:
        return any_of(view, lacking, most)
    return next(place for place, total in zip(places, sums, strict=True) if total > mark)


def any_of(view: View, lacking: Sequence[float], most: float) -> int:
    """Whoever has passed the filters, each with the same probability."""
    count = len(lacking)
    return by_turn(view, range(count), int(view.draw * count))


PICKERS: dict[str, Picker] = {"best": best, "weighted_draw": weighted_draw, "any": any_of}
