"""Prefill work times number of requests (LMetric)."""

from operator import add, mul

from router.policy.rules.classify import class_by_cache
from router.policy.strategies.strategy import Strategy
from router.policy.types import Pick
from router.policy.view import View, least


def rank(view: View) -> Pick:
    """argmin (PP_i + n_i) · R_i (arXiv 2603.15202). Idle instances all score 0, so PP_i + n_i breaks ties."""
    work = view.at_pace(list(map(add, view.instances.prefill_tokens, view.new)))
    scores = list(map(mul, work, view.instances.running))
    position = least(view, scores, lambda: work)
    instance = view.instances[position]
    reason = f"least product: {work[position]:,.0f} prefill tokens times {instance.running} requests"
    return Pick(instance, class_by_cache(view), "least_product", (reason,), view.instances, scores)


STRATEGY = Strategy(
    "lmetric",
    "LMetric",
    "The least product of prefill work with this request on it and requests; no weights to tune.",
    "argmin (PP_i + n_i) · R_i, ties by PP_i + n_i",
    rank,
    as_published=True,
)
