"""The instance with the fewest requests."""

from router.policy.rules.classify import class_by_cache
from router.policy.strategies.strategy import FEWER, REQUESTS_FIRST, Shortlisting, Strategy
from router.policy.types import Pick, RequestClass
from router.policy.view import View, least


def rank(view: View) -> Pick:
    return fewest_requests(view, class_by_cache(view))


def fewest_requests(view: View, request_class: RequestClass, reasons: tuple[str, ...] = ()) -> Pick:
    """argmin R_i, ties by the draw."""
    scores = view.instances.running
    instance = view.instances[least(view, scores)]
    reason = f"fewest requests: {instance.running}"
    return Pick(instance, request_class, "least_requests", (*reasons, reason), view.instances, scores)


STRATEGY = Strategy(
    "least_requests",
    "Least requests",
    "The instance with the fewest requests running and waiting.",
    "argmin R_i",
    rank,
    shortlisting=Shortlisting(most=FEWER, request_tokens=REQUESTS_FIRST),
)
