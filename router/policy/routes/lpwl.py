"""Least prefill work left."""

from router.policy.classify import class_by_cache
from router.policy.routes.route import Route
from router.policy.view import Pick, View, by_turn, scores_of


def rank(view: View) -> Pick:
    """argmin PP_i + n_i, ties by R_i, then round robin."""
    prompt = view.request.prompt_tokens
    scores = [instance.prefill_tokens + max(prompt - instance.cached_tokens, 0) for instance in view.instances]
    best = min(scores)
    tied = [instance for instance, score in zip(view.instances, scores, strict=True) if score == best]
    fewest = min(instance.running for instance in tied)
    instance = by_turn([other for other in tied if other.running == fewest], view.request.turn)
    reason = f"least prefill work: {best:,} tokens with this request"
    return Pick(instance, class_by_cache(view), "least_prefill", (reason,), scores_of(view, scores))


ROUTE = Route(
    "lpwl",
    "Least prefill work left",
    "The least prefill work with this request on it (queued and new tokens); ties by requests, then in turn.",
    rank,
)
