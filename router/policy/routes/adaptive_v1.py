"""Sessions stay, prompts follow the cache, heavy prefills go where few are decoding (experiments B and C)."""

from router.policy.affinity import Binding, binding
from router.policy.classify import class_on
from router.policy.load import overloaded, work
from router.policy.parameter import Parameter
from router.policy.routes.route import Route
from router.policy.types import Instance, RequestClass
from router.policy.view import Pick, View, least, scores_of


def rank(view: View) -> Pick:
    """Heavy: least D_i, then PP_i. Else the session's instance, else the best by cache, neither while overloaded."""
    bound = binding(view)
    rest = view.without(bound.left)
    home = bound.instance or _best_by_cache(rest)
    request_class = class_on(rest, home)
    if request_class == "heavy":
        return _least_decode(rest, home, bound)
    if bound.instance is not None:
        return Pick(home, request_class, "session", bound.reasons)
    return _cache_or_load(rest, home, request_class, bound.reasons)


def _least_decode(view: View, home: Instance, bound: Binding) -> Pick:
    """A long prefill slows every decode beside it, so it goes where the fewest are; of equals where most is cached."""
    spared = _within_loss(view)
    scores = [instance.decodes for instance in spared.instances]
    instance = least(
        spared,
        scores,
        [other.prefill_tokens for other in spared.instances],
        [-other.cached_tokens for other in spared.instances],
    )
    reasons = [
        *bound.reasons,
        f"heavy: {view.new_tokens(home):,} new tokens on {home.id}",
        f"least decode load: {instance.decodes} decodes, {instance.prefill_tokens:,} prefill tokens",
    ]
    if left_out := len(view.instances) - len(spared.instances):
        limit = view.policy["route.heavy_cache_loss_max"]
        reasons.append(f"{left_out} left out: each would compute more than {limit:,} tokens again")
    return Pick(instance, "heavy", "least_decode", tuple(reasons), scores_of(spared, scores))


def _within_loss(view: View) -> View:
    """Without those where more cached tokens than allowed would be computed again."""
    limit = view.policy["route.heavy_cache_loss_max"]
    most = min(max(instance.cached_tokens for instance in view.instances), view.request.prompt_tokens)
    kept = [instance for instance in view.instances if most - instance.cached_tokens <= limit]
    return View(view.request, kept, view.policy, view.draw)


def _best_by_cache(view: View) -> Instance:
    """Most cached tokens; of equals the one with the least work."""
    cached = [-instance.cached_tokens for instance in view.instances]
    return least(view, cached, work(view))


def _cache_or_load(view: View, home: Instance, request_class: RequestClass, reasons: tuple[str, ...]) -> Pick:
    if home.cached_tokens <= 0:
        why = "no instance holds any of the prompt"
    elif busy := overloaded(view, home):
        why = f"{home.id} holds most of the prompt and is passed over: {busy}"
    else:
        scores: list[float] = [view.new_tokens(instance) for instance in view.instances]
        reason = f"best by cache: {home.cached_tokens:,} tokens cached"
        return Pick(home, request_class, "cache", (*reasons, reason), scores_of(view, scores))
    loads = work(view)
    instance = least(view, loads)
    return Pick(
        instance,
        request_class,
        "least_work",
        (*reasons, why, f"least work: {min(loads):,.0f} tokens"),
        scores_of(view, loads),
    )


HEAVY_CACHE_LOSS_MAX = Parameter(
    path="route.heavy_cache_loss_max",
    title="Cached tokens that a heavy request may lose",
    kind="int",
    unit="tokens",
    default=1_000_000,
    minimum=0,
    maximum=1_000_000,
    step=10_000,
    raises="Heavy requests may leave more of their cache for an instance with fewer decodes; at the maximum all.",
    metric="class.new_tokens_p90",
    up="looser: heavy requests may leave more of their cache behind",
    down="stricter: heavy requests stay nearer to their cache",
    routes=("adaptive_v1",),
)

ROUTE = Route(
    "adaptive_v1",
    "Adaptive",
    "Heavy requests go to the instance with the fewest decodes, then the least prefill; others to the session's "
    "instance, else to the best by cache, unless that is overloaded.",
    rank,
    parameters=(HEAVY_CACHE_LOSS_MAX,),
    affinity=True,
)
