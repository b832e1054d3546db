"""Pick one of the scored instances by its gap to the best possible score."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from router.policy.view import View, by_turn, least

Picker = Callable[[View, Sequence[float], float], int]  # (view, gaps, greatest possible gap)


def best(view: View, lacking: Sequence[float], most: float) -> int:
    """The least gap, ties by the draw."""
    return least(view, lacking)


def weighted_draw(view: View, lacking: Sequence[float], most: float) -> int:
    """Each with a probability in proportion to its score."""
    positions = view.instances.order
    sums = list(accumulate(max(most - lacking[position], 0.0) for position in positions))
    mark = view.draw * sums[-1]
    if not sums[-1]:
        return any_of(view, lacking, most)
    return next(position for position, total in zip(positions, sums, strict=True) if total > mark)


def any_of(view: View, lacking: Sequence[float], most: float) -> int:
    """Any instance that passed the filters, each with the same probability."""
    count = len(lacking)
    return by_turn(view, range(count), int(view.draw * count))


PICKERS: dict[str, Picker] = {"best": best, "weighted_draw": weighted_draw, "any": any_of}
