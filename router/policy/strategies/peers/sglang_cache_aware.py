"""Longest match while the load is even, fewest requests while it is uneven (SGLang's router)."""

from router.policy.rules.classify import class_by_cache
from router.policy.schema.parameter import Parameter
from router.policy.strategies.baselines.least_requests import fewest_requests
from router.policy.strategies.strategy import Strategy
from router.policy.types import Pick
from router.policy.view import View, least


def rank(view: View) -> Pick:
    """If max R − min R > balance_abs and max R > balance_rel · min R: argmin R_i. Otherwise the longest match if it is
    more than match_share of the prompt, else argmin R_i."""
    request_class = class_by_cache(view)
    running = view.instances.running
    most, fewest = max(running), min(running)
    policy = view.policy
    if most - fewest > policy["strategy.balance_abs"] and most > policy["strategy.balance_rel"] * fewest:
        return fewest_requests(view, request_class, (f"load is uneven: {fewest} to {most} requests",))
    longest = max(view.cached)
    if longest > policy["strategy.match_share"] * view.request.prompt_tokens:
        position = least(view, view.new, lambda: running)
        reason = f"longest match: {longest:,} of {view.request.prompt_tokens:,} tokens"
        return Pick(view.instances[position], request_class, "longest_match", (reason,), view.instances, view.new)
    return fewest_requests(view, request_class, (f"the longest match is short: {longest:,} tokens",))


BALANCE_ABS = Parameter(
    name="strategy.balance_abs",
    title="Load is uneven above a difference of",
    unit="requests",
    default=32,
    range=(0, 100_000),
    step=4,
    help="Matches are followed through greater differences in requests between instances.",
    metric="instance.running_max",
    up="looser: follows matches at greater differences in load",
    down="stricter: goes by load at smaller differences",
)
BALANCE_REL = Parameter(
    name="strategy.balance_rel",
    title="And above a ratio of",
    unit="ratio",
    default=1.1,
    range=(1.0, 100.0),
    step=0.1,
    help="Matches are followed at greater ratios between the most and the fewest requests.",
    metric="instance.running_max",
    up="looser: follows matches at greater ratios in load",
    down="stricter: goes by load at smaller ratios",
)
MATCH_SHARE = Parameter(
    name="strategy.match_share",
    title="Matches count above a share of",
    unit="share",
    default=0.5,
    range=(0.0, 1.0),
    step=0.05,
    help="More requests go by load because too little of them matches; at 1 all do.",
    metric="class.hit_share_p50",
    up="stricter: short matches are not followed",
    down="looser: shorter matches are followed",
)

STRATEGY = Strategy(
    "sglang_cache_aware",
    "SGLang cache aware",
    "The longest match when it is long enough and the load is even; else the fewest requests.",
    "max R − min R > balance_abs and max R > balance_rel · min R: argmin R_i; else max h_i if h_i/L > match_share; "
    "else argmin R_i",
    rank,
    parameters=(BALANCE_ABS, BALANCE_REL, MATCH_SHARE),
)
