"""The decision: filter, then the policy's route. Pure: the router, the shadow, the twin and the preview call it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from router.policy import filters
from router.policy.classify import classify
from router.policy.routes import ROUTES
from router.policy.types import Candidate, Decision, Instance, Policy, Request
from router.policy.view import View

REASONS_SHOWN = 5  # kinds of refusal that are spelled out when nobody can take a request


def decide(request: Request, instances: Sequence[Instance], policy: Policy, draw: float) -> Decision:
    """Which instance takes the request and why; `draw` in [0, 1) decides between equals.

    `Decision.instance` is empty when nobody can take it. The class comes from n and h on the instance that the policy
    would pick by cache.
    """
    refusals = filters.refusals(instances, policy)
    able = [instance for instance, why in zip(instances, refusals, strict=True) if not why]
    if not able:
        return _nobody(request, instances, policy, refusals)
    pick = ROUTES[policy.route].rank(View(request, able, policy, draw))
    return Decision(
        instance=pick.instance.id,
        request_class=pick.request_class,
        flow=policy["flow.heavy"] if pick.request_class == "heavy" else "colocated",
        route=policy.route,
        rule=pick.rule,
        reasons=pick.reasons,
        cached_tokens=min(pick.instance.cached_tokens, request.prompt_tokens),
        new_tokens=max(request.prompt_tokens - pick.instance.cached_tokens, 0),
        candidates=_candidates(request, instances, refusals, pick.scores),
    )


def _nobody(request: Request, instances: Sequence[Instance], policy: Policy, refusals: list[str]) -> Decision:
    cached = min(max((instance.cached_tokens for instance in instances), default=0), request.prompt_tokens)
    return Decision(
        instance="",
        request_class=classify(request.prompt_tokens, cached, policy),
        flow="colocated",
        route=policy.route,
        rule="nobody",
        reasons=_why_nobody(refusals),
        cached_tokens=cached,
        new_tokens=request.prompt_tokens - cached,
        candidates=_candidates(request, instances, refusals, {}),
    )


def _why_nobody(refusals: list[str]) -> tuple[str, ...]:
    if not refusals:
        return ("the pool has no instances",)
    kinds = Counter(refusals).most_common()
    told = [f"{count} of {len(refusals)}: {why}" for why, count in kinds[:REASONS_SHOWN]]
    rest = sum(count for _, count in kinds[REASONS_SHOWN:])
    return ("no instance can take the request", *told, *([f"{rest} more for other reasons"] if rest else []))


def _candidates(
    request: Request, instances: Sequence[Instance], refusals: list[str], scores: Mapping[str, float]
) -> tuple[Candidate, ...]:
    prompt = request.prompt_tokens
    return tuple(
        Candidate(
            instance.id,
            min(instance.cached_tokens, prompt),
            max(prompt - instance.cached_tokens, 0),
            scores.get(instance.id),
            why,
        )
        for instance, why in zip(instances, refusals, strict=True)
    )
