"""A delivery in the form published for routers: the split, and the document of the candidate's arm."""

from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.types import Canary, Plan, Switchback
from controlplane.traffic.deliveries.states import SPLIT
from router.contract.redis.published import CandidateVersion, FullRollout, Rollout, SplitRollout
from router.contract.values.json_value import JsonObject
from router.policy.schema import document as documents
from router.policy.schema.diff import ParameterChange, diff
from router.policy.schema.parameters import belongs_to_pool

WARMUP_S = 10.0  # time after a change of shares within which requests are not counted in the tallies


def held_back(live: JsonObject, candidate: JsonObject) -> tuple[ParameterChange, ...]:
    """Return the changes that take effect only when the candidate goes live."""
    return tuple(change for change in diff(live, candidate) if belongs_to_pool(change.path))


def split_document(live: JsonObject, candidate: JsonObject) -> JsonObject:
    """Return the candidate's document with the live version's values for the pool's parameters. Both are in the current
    schema."""
    return documents.apply_overrides(candidate, {change.path: change.old for change in held_back(live, candidate)})


def rollout(delivery: Delivery | None, pool: str) -> Rollout:
    """Return the rollout for `delivery`: the policy's latest, open or closed; None if it never had one."""
    if delivery is None:
        return FullRollout()
    plan = stored_plan.read(delivery.plan)
    if delivery.state not in SPLIT or pool not in plan.pools:
        return FullRollout(generation=delivery.generation)
    document = split_document(delivery.base.upgraded, delivery.candidate.upgraded)
    return SplitRollout(
        delivery=delivery.pk,
        generation=delivery.generation,
        salt=delivery.salt,
        share=delivery.share,
        shadow=delivery.shadow,
        warmup_s=_warmup_s(plan, delivery.step),
        slow={name: (a, b, tau) for name, (a, b, tau) in delivery.slow.items()},
        candidate=CandidateVersion(
            version=delivery.candidate.number, sha256=documents.sha256(document), document=document
        ),
    )


def _warmup_s(plan: Plan, step: int) -> float:
    entered = plan.steps[step]
    if isinstance(entered, Switchback):
        return float(entered.washout_s)
    return WARMUP_S if isinstance(entered, Canary) else 0.0
