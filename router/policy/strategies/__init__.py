"""The strategies: Weir's own in this folder, baselines and peers in subfolders.
A new strategy is a file, a line in `STRATEGIES`, golden cases and a section in docs/policies.md.
"""

from router.policy.strategies import (
    adaptive_offload,
    adaptive_v1,
    cache_aware,
    conditional_offload,
    priced,
    weighted,
)
from router.policy.strategies.baselines import (
    least_requests,
    power_of_two,
    prefix_hash,
    random,
    round_robin,
    round_robin_pd,
    session_sticky,
)
from router.policy.strategies.peers import (
    dynamo,
    llm_d,
    lmetric,
    lpwl,
    mooncake_conductor,
    ppd,
    sglang_cache_aware,
    smetric,
)
from router.policy.strategies.strategy import Strategy

STRATEGIES: dict[str, Strategy] = {
    module.STRATEGY.name: module.STRATEGY
    for module in (
        round_robin,
        random,
        least_requests,
        power_of_two,
        session_sticky,
        prefix_hash,
        cache_aware,
        adaptive_v1,
        adaptive_offload,
        conditional_offload,
        sglang_cache_aware,
        dynamo,
        llm_d,
        lmetric,
        lpwl,
        smetric,
        priced,
        mooncake_conductor,
        round_robin_pd,
        ppd,
        weighted,
    )
}


def title_of(name: str) -> str:
    """Return the title shown on forms; the bare name for a strategy from another release."""
    return STRATEGIES[name].title if name in STRATEGIES else name


__all__ = ["STRATEGIES", "Strategy", "title_of"]
