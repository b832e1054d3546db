"""Least prefill work left (LPWL)."""

from operator import add

from router.policy.rules.classify import class_by_cache
from router.policy.strategies.strategy import FEWER, TOKENS_FIRST, Shortlisting, Strategy
from router.policy.types import Pick
from router.policy.view import View, by_turn


def rank(view: View) -> Pick:
    """argmin PP_i + n_i, ties by R_i, then round robin."""
    scores = view.at_pace(list(map(add, view.instances.prefill_tokens, view.new)))
    best, running = min(scores), view.instances.running
    tied = [position for position, score in enumerate(scores) if score == best]
    fewest = min(running[position] for position in tied)
    tied = [position for position in tied if running[position] == fewest]
    instance = view.instances[by_turn(view, tied, view.request.turn)]
    reason = f"least prefill work: {best:,.0f} tokens with this request"
    return Pick(instance, class_by_cache(view), "least_prefill", (reason,), view.instances, scores)


STRATEGY = Strategy(
    "lpwl",
    "Least prefill work left",
    "The least prefill work with this request on it (queued and new tokens); ties by requests, then in turn.",
    "argmin PP_i + n_i, ties by R_i, then in turn",
    rank,
    as_published=True,
    shortlisting=Shortlisting(most=FEWER, request_tokens=TOKENS_FIRST),
)
