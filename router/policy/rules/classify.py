"""Request classes: by the new tokens that remain after the prefix cache (design: routing, Classes)."""

from router.policy.types import InstanceState, Policy, RequestClass
from router.policy.view import View


def classify(prompt_tokens: int, cached_tokens: int, policy: Policy) -> RequestClass:
    """The class of L tokens of which h are cached. In this order: many new tokens are heavy whatever the hit is."""
    cached = cached_tokens if cached_tokens < prompt_tokens else prompt_tokens
    new_tokens = prompt_tokens - cached
    if new_tokens >= policy["classes.heavy_new_tokens"]:
        return "heavy"
    # h/L > share without a division: an empty prompt has no share, and is warm by its new tokens.
    hit = cached > policy["classes.warm_hit_share"] * prompt_tokens
    if hit or new_tokens < policy["classes.warm_new_tokens"]:
        return "warm"
    return "medium"


def class_on(view: View, instance: InstanceState) -> RequestClass:
    return classify(view.request.prompt_tokens, view.cached_on(instance), view.policy)


def class_by_cache(view: View) -> RequestClass:
    """The class on the instance that holds most of the prompt: for strategies that do not choose by cache."""
    return classify(view.request.prompt_tokens, max(view.cached), view.policy)
