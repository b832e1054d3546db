"""Sessions stay on their instance, prompts follow the cache, heavy prefills go where few requests decode (experiments
B, C)."""

from collections.abc import Callable

from router.policy.rules.affinity import binding
from router.policy.rules.classify import class_on, class_warm_first
from router.policy.rules.offload import serving
from router.policy.rules.overload import most_work, overloaded
from router.policy.schema.parameter import Parameter
from router.policy.strategies.strategy import Strategy
from router.policy.types import InstanceState, Pick, RequestClass
from router.policy.view import View, least

# The strategy's decision for a request that would be heavy on this instance
Heavy = Callable[[View, InstanceState, tuple[str, ...]], Pick]


def rank(view: View) -> Pick:
    """Heavy: least D_i, then PP_i. Otherwise the session's instance, or else the best by cache. An overloaded instance
    is never chosen.
    """
    return adaptive(view, least_decode)


def adaptive(view: View, heavy: Heavy) -> Pick:
    bound = binding(view)
    rest = view if bound.left is None else view.without(bound.left)
    home = bound.instance or best_by_cache(rest)
    session_first = view.policy["strategy.order"] == SESSION_FIRST
    request_class = class_warm_first(rest, home) if session_first else class_on(rest, home)
    if request_class == "heavy" and not (session_first and bound.instance):
        return heavy(rest, home, bound.reasons)
    if bound.instance is not None:
        return Pick(home, request_class, "session", bound.reasons)
    return cache_or_load(rest, home, request_class, bound.reasons)


def least_decode(view: View, home: InstanceState, reasons: tuple[str, ...]) -> Pick:
    """Choose the instance with the fewest decodes, because a long prefill slows all of them; among equals, the most
    cached."""
    near, left_out = _not_overloaded(*_near_the_cache(view))
    scores = near.instances.decodes
    position = least(near, scores, lambda: near.at_pace(near.instances.prefill_tokens), lambda: near.at_pace(near.new))
    instance = near.instances[position]
    why = (
        f"heavy: {view.request.prompt_tokens - view.cached_on(home):,} new tokens on {home.id}",
        f"least decode load: {instance.decodes} decodes, {instance.prefill_tokens:,} prefill tokens",
    )
    return Pick(instance, "heavy", "least_decode", (*reasons, *why, *left_out), near.instances, scores)


def _near_the_cache(view: View) -> tuple[View, tuple[str, ...]]:
    """Remove the instances that would lose too much of the cache, with a reason that states their number."""
    limit = view.policy["strategy.heavy_cache_loss_max"]
    most = max(view.cached)
    if most - min(view.cached) <= limit:
        return view, ()
    near = view.only([most - cached <= limit for cached in view.cached])
    left_out = len(view.instances) - len(near.instances)
    return near, (f"{left_out} left out: each would compute more than {limit:,} tokens again",)


def _not_overloaded(view: View, reasons: tuple[str, ...]) -> tuple[View, tuple[str, ...]]:
    """Remove overloaded instances: an instance that computes long prompts has few decodes, and must not attract the
    next prompt."""
    limit = most_work(view)
    if max(view.work) <= limit:
        return view, reasons
    rest = view.only([work <= limit for work in view.work])
    left_out = len(view.instances) - len(rest.instances)
    return rest, (*reasons, f"{left_out} left out: each has more than {limit:,.0f} tokens of work")


def best_by_cache(view: View) -> InstanceState:
    """Return the instance with the least n_i/pace_i, among equals the one with the least work."""
    return view.instances[least(view, view.new_at_pace, lambda: view.work)]


def cache_or_load(view: View, home: InstanceState, request_class: RequestClass, reasons: tuple[str, ...]) -> Pick:
    cached = view.cached_on(home)
    if cached == 0:
        why = "no instance holds any of the prompt"
    elif busy := overloaded(view, home):
        why = f"{home.id} holds most of the prompt and is passed over: {busy}"
    else:
        chosen = f"best by cache: {cached:,} tokens cached"
        return Pick(home, request_class, "cache", (*reasons, chosen), view.instances, view.new_at_pace)
    view = serving(view)
    position = least(view, view.work)
    least_work = f"least work: {view.work[position]:,.0f} tokens"
    return Pick(
        view.instances[position], request_class, "least_work", (*reasons, why, least_work), view.instances, view.work
    )


SESSION_FIRST = "session_first"
ORDER = Parameter(
    name="strategy.order",
    title="Order of the rules",
    default="heavy_first",
    choices=("heavy_first", SESSION_FIRST),
    help="session_first: a session's requests stay with it even when they are heavy, and a prompt that is mostly "
    "cached is warm however much of it is new. heavy_first: many new tokens are heavy in any case.",
)
HEAVY_CACHE_LOSS_MAX = Parameter(
    name="strategy.heavy_cache_loss_max",
    title="Cached tokens that a heavy request may lose",
    unit="tokens",
    default=1_000_000,
    range=(0, 1_000_000),
    step=10_000,
    help="Heavy requests may leave more of their cache for an instance with fewer decodes; at the maximum all.",
    metric="class.new_tokens_p90",
    up="heavy requests may leave more of their cache behind",
    down="heavy requests stay nearer to their cache",
)

STRATEGY = Strategy(
    "adaptive_v1",
    "Adaptive",
    "Heavy requests go to the instance with the fewest decodes, then the least prefill; others to the session's "
    "instance, else to the best by cache; none to one that is overloaded.",
    "heavy: argmin D_i, then PP_i / pace_i; else the session's instance; else argmin n_i / pace_i; overloaded: argmin "
    "work_i",
    rank,
    parameters=(ORDER, HEAVY_CACHE_LOSS_MAX),
    affinity=True,
    by_pace=True,
)
