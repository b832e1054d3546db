"""The less loaded of two drawn instances."""

from router.policy.rules.classify import class_by_cache
from router.policy.strategies.strategy import FEWER, Shortlisting, Strategy
from router.policy.types import Pick
from router.policy.view import View


def rank(view: View) -> Pick:
    """Draw two different instances and take the one with fewer requests; on a tie, the first."""
    count = len(view.instances)
    request_class = class_by_cache(view)
    if count == 1:
        return Pick(view.instances[0], request_class, "two_choices", ("the only instance that can take it",))
    order = view.instances.order
    two = [view.instances[order[position]] for position in _pair(view.draw, count)]
    scores = [instance.running for instance in two]
    instance = two[0] if scores[0] <= scores[1] else two[1]
    reason = f"of {two[0].id} and {two[1].id} the one with fewer requests: {instance.running}"
    return Pick(instance, request_class, "two_choices", (reason,), two, scores)


def _pair(draw: float, count: int) -> tuple[int, int]:
    """Draw one of the count · (count − 1) ordered pairs of different positions, each with equal probability."""
    first, second = divmod(int(draw * count * (count - 1)), count - 1)
    return first, second + (second >= first)


STRATEGY = Strategy(
    "power_of_two",
    "Power of two choices",
    "Two instances are drawn, and the one with fewer requests takes it.",
    "argmin R_i of two instances drawn",
    rank,
    shortlisting=Shortlisting("draw", most=FEWER),
)
