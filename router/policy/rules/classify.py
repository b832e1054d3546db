"""Request classes, by the number of new tokens that remain after the prefix cache (design: routing, Classes)."""

from router.policy.types import InstanceState, ParsedPolicy, RequestClass
from router.policy.view import View


def classify(prompt_tokens: int, cached_tokens: int, policy: ParsedPolicy) -> RequestClass:
    """Return the class of L tokens of which h are cached. Many new tokens are heavy, however large the hit."""
    cached = cached_tokens if cached_tokens < prompt_tokens else prompt_tokens
    if prompt_tokens - cached >= policy["classes.heavy_new_tokens"]:
        return "heavy"
    # inlined `_is_warm`
    if cached > policy["classes.warm_hit_share"] * prompt_tokens:
        return "warm"
    return "warm" if prompt_tokens - cached < policy["classes.warm_new_tokens"] else "medium"


def _is_warm(prompt_tokens: int, cached: int, policy: ParsedPolicy) -> bool:
    # h/L > share without a division: an empty prompt has no share, and is warm because it has no new tokens.
    hit: bool = cached > policy["classes.warm_hit_share"] * prompt_tokens
    return hit or prompt_tokens - cached < policy["classes.warm_new_tokens"]


def class_on(view: View, instance: InstanceState) -> RequestClass:
    return classify(view.request.prompt_tokens, view.cached_on(instance), view.policy)


def class_warm_first(view: View, instance: InstanceState) -> RequestClass:
    """Return the class with the rules in reverse order: a mostly cached prompt is warm, however many tokens are new."""
    cached = min(view.cached_on(instance), view.request.prompt_tokens)
    return "warm" if _is_warm(view.request.prompt_tokens, cached, view.policy) else class_on(view, instance)


def class_by_cache(view: View) -> RequestClass:
    """Return the class on the instance that holds most of the prompt, for strategies that ignore the cache."""
    return classify(view.request.prompt_tokens, max(view.cached), view.policy)
