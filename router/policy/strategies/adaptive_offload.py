"""adaptive_v1, except that a heavy prompt is computed elsewhere and its KV moves to where most of it is cached
(experiment D)."""

from router.policy.rules.offload import prefiller, serving
from router.policy.strategies.adaptive_v1 import HEAVY_CACHE_LOSS_MAX, ORDER, adaptive, least_decode
from router.policy.strategies.strategy import Strategy
from router.policy.types import InstanceState, Pick
from router.policy.view import View


def rank(view: View) -> Pick:
    """Heavy: prefill on the least loaded other instance, decode on `home`; if there is no other instance, like
    adaptive_v1."""
    return adaptive(view, _offload)


def _offload(view: View, home: InstanceState, reasons: tuple[str, ...]) -> Pick:
    helper, why = prefiller(view, home)
    if helper is None:
        return least_decode(serving(view), home, (*reasons, why))
    heavy = f"heavy: {view.request.prompt_tokens - view.cached_on(home):,} new tokens on {home.id}"
    return Pick(home, "heavy", "offload", (*reasons, heavy, why), prefill=helper)


STRATEGY = Strategy(
    "adaptive_offload",
    "Adaptive offload",
    "Heavy prompts are computed on the least loaded other instance and decoded where most is cached; others as in "
    "Adaptive.",
    "heavy: decode at the session's instance, else argmin n_i; prefill argmin work_j of the others; else adaptive_v1",
    rank,
    parameters=(ORDER, HEAVY_CACHE_LOSS_MAX),
    affinity=True,
    by_pace=True,
    offloads=True,
)
