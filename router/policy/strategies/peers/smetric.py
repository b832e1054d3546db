"""Sessions stay while their instance is fast enough; otherwise load times requests decides (SMetric)."""

from operator import add, mul

from router.policy.rules.classify import class_by_cache, class_on
from router.policy.schema.parameter import Parameter
from router.policy.strategies.strategy import Strategy
from router.policy.types import InstanceState, Pick
from router.policy.view import View, least


def rank(view: View) -> Pick:
    """cost = n + n·(L − n/2)/L_eq; load_i = PP_i + cost_i. The session's instance if it holds more than half of the
    history, and if load_i/rate ≤ slack · (base + per_1k · L/1000) or no instance meets that limit. Otherwise argmin
    load_i · R_i."""
    costs = prefill_costs(view, view.policy["strategy.equal_cost_tokens"])
    loads = view.at_pace(list(map(add, view.instances.prefill_tokens, costs)))
    home = view.instances.position(view.request.bound_to)
    if home is not None:
        stays, why = _stays(view, loads, home)
        if stays:
            instance = view.instances[home]
            return Pick(instance, class_on(view, instance), "session", (why,))
        reasons: tuple[str, ...] = (why,)
    else:
        reasons = ()
    return _least_product(view, loads, reasons)


def prefill_costs(view: View, equal: float) -> list[float]:
    """Return w_i, in tokens."""
    prompt, costs = view.request.prompt_tokens, []
    known: dict[int, float] = {}
    for cached in view.cached:
        cost = known.get(cached)
        if cost is None:  # rare, as most instances hold the same part of the prompt
            new = prompt - cached
            cost = known[cached] = new + new * (prompt - new / 2) / equal  # inlined `cost_of`
        costs.append(cost)
    return costs


def prefill_cost(view: View, new: int, equal: float) -> float:
    return cost_of(new, view.request.prompt_tokens, equal)


def cost_of(new: int, prompt: int, equal: float) -> float:
    """Return the cost in tokens. A new token costs more with a longer context: twice as much at `equal`, which is
    L_eq."""
    return new + new * (prompt - new / 2) / equal


def _stays(view: View, loads: list[float], home: int) -> tuple[bool, str]:
    request, policy, instance = view.request, view.policy, view.instances[home]
    cached = view.cached[home]
    if cached <= policy["strategy.history_share"] * request.history_tokens:
        return False, f"{instance.id} holds {cached:,} of the session's {request.history_tokens:,} tokens: not enough"
    rate = request.rates.prefill_tokens_per_s
    if not rate:
        return True, f"the session is on {instance.id}; how fast prompts are computed is not known yet"
    limit = policy["strategy.slo_slack"] * (
        policy["strategy.slo_base_s"] + policy["strategy.slo_per_1k_s"] * request.prompt_tokens / 1_000
    )
    takes = loads[home] / rate
    if takes <= limit:
        return True, f"the session is on {instance.id}: first token after {takes:.2f} s, {limit:.2f} s are allowed"
    if min(loads) / rate > limit:
        return True, f"the session is on {instance.id}: no instance gives the first token within {limit:.2f} s"
    return False, _too_slow(instance, takes, limit)


def _too_slow(instance: InstanceState, takes: float, limit: float) -> str:
    return f"the session leaves {instance.id}: first token after {takes:.2f} s, {limit:.2f} s are allowed"


def _least_product(view: View, loads: list[float], reasons: tuple[str, ...]) -> Pick:
    scores = list(map(mul, loads, view.instances.running))
    position = least(view, scores, lambda: loads)
    instance = view.instances[position]
    reason = f"least product: load {loads[position]:,.0f} times {instance.running} requests"
    return Pick(instance, class_by_cache(view), "least_product", (*reasons, reason), view.instances, scores)


EQUAL_COST_TOKENS = Parameter(
    name="strategy.equal_cost_tokens",
    title="Attention costs as much as the rest at a context of",
    unit="tokens",
    default=30_000,
    range=(1_000, 10_000_000),
    step=1_000,
    help="Long prompts count as less work beside short ones; priced asks it only where the engines' law is not known.",
    metric="class.new_tokens_p90",
    up="long prompts count as less work",
    down="long prompts count as more work",
)
HISTORY_SHARE = Parameter(
    name="strategy.history_share",
    title="A session stays above a cached share of its history of",
    unit="share",
    default=0.5,
    range=(0.0, 1.0),
    step=0.05,
    help="Sessions of which little is cached any more move sooner.",
    metric="class.hit_share_p50",
    up="stricter: sessions need more of their history cached to stay",
    down="looser: sessions stay with less of their history cached",
)
SLO_SLACK = Parameter(
    name="strategy.slo_slack",
    title="Slack on the time to the first token",
    unit="ratio",
    default=1.0,
    range=(0.01, 100.0),
    step=0.1,
    help="Sessions stay on slower instances for longer.",
    metric="ttft_p99_ms",
    up="looser: sessions stay on slower instances",
    down="stricter: sessions leave slow instances sooner",
)
SLO_BASE_S = Parameter(
    name="strategy.slo_base_s",
    title="First token allowed after",
    unit="s",
    default=1.0,
    range=(0.0, 600.0),
    step=0.1,
    help="More time to the first token is allowed, whatever the prompt's length.",
    metric="ttft_p99_ms",
    up="looser: more time to the first token",
    down="stricter: less time to the first token",
)
SLO_PER_1K_S = Parameter(
    name="strategy.slo_per_1k_s",
    title="And for each 1,000 prompt tokens",
    unit="s",
    default=0.0625,
    range=(0.0, 60.0),
    step=0.005,
    help="Long prompts are allowed more time to the first token.",
    metric="ttft_p99_ms",
    up="looser: more time for long prompts",
    down="stricter: less time for long prompts",
)

STRATEGY = Strategy(
    "smetric",
    "SMetric",
    "The session's instance while it holds enough of the history and is fast enough, or nobody is; else the least "
    "product of prefill load and requests.",
    "load_i = PP_i + n + n·(L − n/2)/equal_cost_tokens; stay if h > history_share · history and load_i/rate ≤ "
    "slo_slack · (slo_base + slo_per_1k · L/1000); else argmin load_i · R_i",
    rank,
    as_published=True,
    parameters=(EQUAL_COST_TOKENS, HISTORY_SHARE, SLO_SLACK, SLO_BASE_S, SLO_PER_1K_S),
)
