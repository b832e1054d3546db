"""Each instance in turn."""

from router.policy.rules.classify import class_by_cache
from router.policy.strategies.strategy import FEWER, Shortlisting, Strategy
from router.policy.types import Pick
from router.policy.view import View, by_turn


def rank(view: View) -> Pick:
    """Instance number `turn mod n` in the order of ids, among those that may take the request."""
    turn, count = view.request.turn, len(view.instances)
    instance = view.instances[by_turn(view, range(count), turn)]
    return Pick(instance, class_by_cache(view), "turn", (f"turn {turn} over {count} instances",))


STRATEGY = Strategy(
    "round_robin",
    "Round robin",
    "Each instance in turn, whatever its load and cache.",
    "index = turn mod number of instances, in the order of ids",
    rank,
    shortlisting=Shortlisting("turn", most=FEWER),
)
