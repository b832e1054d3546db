"""Least estimated time to the first token; prefixes may be fetched from the store (Mooncake's Conductor)."""

from collections.abc import Sequence
from operator import sub

from router.policy.rules.classify import class_by_cache
from router.policy.rules.pull import SHARED
from router.policy.schema.parameter import Parameter
from router.policy.strategies.strategy import TOKENS_FIRST, Shortlisting, Strategy
from router.policy.types import Pick, RequestClass
from router.policy.view import View, least


def rank(view: View) -> Pick:
    """argmin TTFT_i = T_transfer + T_queue(i) + T_prefill(L, prefix) (FAST '25, algorithm 1)."""
    rate = view.request.rates.prefill_tokens_per_s
    prefixes = _prefixes(view)
    prompt = view.request.prompt_tokens
    tokens = view.at_pace(
        [prefill + prompt - prefix for prefill, prefix in zip(view.instances.prefill_tokens, prefixes, strict=True)]
    )
    request_class = class_by_cache(view)
    if not rate:
        position = least(view, tokens)
        reason = f"least prefill work, {tokens[position]:,.0f} tokens: how fast prompts are computed is not known yet"
        return Pick(view.instances[position], request_class, "least_ttft", (reason,), view.instances, tokens)
    scores = [work / rate for work in tokens]
    if prefixes is not view.cached:
        moved = map(sub, prefixes, view.cached)
        scores = [score + _transfer_s(view, tokens) for score, tokens in zip(scores, moved, strict=True)]
    position = least(view, scores)
    return _judged(view, request_class, scores, position, prefixes[position] - view.cached[position])


def _prefixes(view: View) -> Sequence[int]:
    """Return cached tokens. If the best instance has more than prefetch_ratio times as many, add the tokens to be
    fetched."""
    rates = view.request.rates
    if not (rates.prefill_tokens_per_s and rates.kv_bytes_per_token and rates.transfer_bytes_per_s):
        return view.cached  # the duration of a transfer is unknown
    ratio = view.policy["strategy.prefetch_ratio"]
    connectors, cached = view.instances.connector, view.cached
    best = max((own for one, own in zip(connectors, cached, strict=True) if one in SHARED), default=0)
    if not best:
        return cached
    return [best if one in SHARED and best > ratio * own else own for one, own in zip(connectors, cached, strict=True)]


def _transfer_s(view: View, tokens: int) -> float:
    return view.request.rates.transfer_s(tokens) if tokens else 0.0


def _judged(view: View, request_class: RequestClass, scores: list[float], position: int, fetched: int) -> Pick:
    """Refuse the request above the limit, except on an idle instance, where waiting would not help."""
    instance, limit = view.instances[position], view.policy["strategy.ttft_limit_s"]
    reasons = [f"least time to the first token: {scores[position]:.2f} s"]
    if fetched:
        reasons.append(f"{fetched:,} tokens of the prefix come from the store")
    if scores[position] > limit and instance.running:
        return Pick(
            instance,
            request_class,
            "over_ttft_limit",
            (*reasons, f"more than the {limit:g} s allowed"),
            view.instances,
            scores,
            refused=True,
        )
    return Pick(instance, request_class, "least_ttft", tuple(reasons), view.instances, scores)


PREFETCH_RATIO = Parameter(
    name="strategy.prefetch_ratio",
    title="Prefixes are fetched when the best holds more than",
    unit="ratio",
    default=1.5,
    range=(1.0, 1_000.0),
    step=0.1,
    help="Fewer prefixes are fetched from other instances, more are computed again.",
    metric="class.hit_share_p50",
    up="stricter: computes more again instead of fetching it",
    down="looser: fetches more from others",
)
TTFT_LIMIT_S = Parameter(
    name="strategy.ttft_limit_s",
    title="Refuse when the first token would take more than",
    unit="s",
    default=30.0,
    range=(0.1, 3_600.0),
    step=1.0,
    help="Fewer requests are refused because the queues are long; those taken wait for longer.",
    metric="ttft_p99_ms",
    up="looser: longer waits, fewer refusals",
    down="stricter: shorter waits, more refusals",
)

STRATEGY = Strategy(
    "mooncake_conductor",
    "Mooncake Conductor",
    "The least estimated time to the first token, prefixes fetched from the store; refused when that takes too long.",
    "argmin T_transfer + T_queue(i) + T_prefill(L, prefix); prefix of the best if best/own > prefetch_ratio; refused "
    "above ttft_limit",
    rank,
    as_published=True,
    parameters=(PREFETCH_RATIO, TTFT_LIMIT_S),
    shortlisting=Shortlisting(request_tokens=TOKENS_FIRST),
)
