"""Any instance."""

from router.policy.rules.classify import class_by_cache
from router.policy.strategies.strategy import FEWER, Shortlisting, Strategy
from router.policy.types import Pick
from router.policy.view import View, by_turn


def rank(view: View) -> Pick:
    """Instance number `draw · n` in the order of ids: each is equally likely."""
    count = len(view.instances)
    instance = view.instances[by_turn(view, range(count), int(view.draw * count))]
    return Pick(instance, class_by_cache(view), "draw", (f"drawn from {count} instances",))


STRATEGY = Strategy(
    "random",
    "Random",
    "Any instance with the same probability, whatever its load and cache.",
    "index = ⌊draw · number of instances⌋, in the order of ids",
    rank,
    shortlisting=Shortlisting("draw", most=FEWER),
)
