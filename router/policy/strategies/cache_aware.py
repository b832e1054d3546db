"""Weighs cache hits against load, in tokens (experiment A)."""

from router.policy.rules.affinity import binding
from router.policy.rules.classify import class_by_cache, class_on
from router.policy.schema.parameter import Parameter
from router.policy.strategies.strategy import FEWER, Shortlisting, Strategy
from router.policy.types import Pick
from router.policy.view import View, least


def rank(view: View) -> Pick:
    """The session's instance unless overloaded, or else argmin (hit_weight · n_i + load_weight · ongoing_i)/pace_i."""
    bound = binding(view)
    if bound.instance is not None:
        return Pick(bound.instance, class_on(view, bound.instance), "session", bound.reasons)
    hit, load = view.policy["strategy.hit_weight"], view.policy["strategy.load_weight"]
    scores = view.at_pace([hit * new + load * ongoing for new, ongoing in zip(view.new, view.ongoing, strict=True)])
    position = least(view, scores, lambda: view.instances.running)
    reason = f"least sum of new and ongoing tokens: {scores[position]:,.0f}"
    request_class = class_by_cache(view.without(bound.left))
    return Pick(view.instances[position], request_class, "score", (*bound.reasons, reason), view.instances, scores)


HIT_WEIGHT = Parameter(
    name="strategy.hit_weight",
    title="Weight of new tokens",
    unit="ratio",
    default=1.0,
    range=(0.0, 100.0),
    step=0.1,
    help="Requests follow the cache further before load sends them elsewhere.",
    metric="class.hit_share_p50",
    up="follows the cache more",
    down="follows the cache less",
)
LOAD_WEIGHT = Parameter(
    name="strategy.load_weight",
    title="Weight of ongoing tokens",
    unit="ratio",
    default=1.0,
    range=(0.0, 100.0),
    step=0.1,
    help="Load is spread more evenly and more prefixes are computed twice.",
    metric="instance.prefill_tokens_max",
    up="spreads load more",
    down="spreads load less",
)

STRATEGY = Strategy(
    "cache_aware",
    "Cache aware",
    "The session's instance unless it is overloaded; else the least weighted sum of new tokens and ongoing tokens.",
    "session's instance, else argmin (hit_weight · n_i + load_weight · (PP_i + request_tokens · R_i)) / pace_i",
    rank,
    parameters=(HIT_WEIGHT, LOAD_WEIGHT),
    affinity=True,
    by_pace=True,
    shortlisting=Shortlisting(most=FEWER),
)
