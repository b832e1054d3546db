"""Trial deliveries on the demo fleet: a good and a harmful candidate, each done in a few minutes."""

from dataclasses import dataclass
from typing import Literal

from django.urls import reverse

from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries import selectors, services
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import Plan
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts import services as drafts
from controlplane.traffic.policies.drafts.editor import strategy_of
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Direct, Policy
from fleet.kinds import KINDS
from fleet.models import Pool
from fleet.spec.fleet_spec import SERVE
from router.contract.values.json_value import JsonObject
from router.policy.schema import document as documents

Candidate = Literal["good", "harmful"]

# Steps are short and margins wide, because demo traffic is only a few requests per second.
PLAN = {
    "steps": [
        {"mode": "shadow", "sample": 1.0, "for_s": 30},
        {"mode": "canary", "share": 0.5, "for_s": 60, "max_s": 900},
        {"mode": "full", "bake_s": 60},
    ],
    "guards": [
        {"metric": "ttft", "classes": ["warm"], "worse": 0.25, "fine": 1.0},
        {"metric": "slow", "classes": ["warm"], "worse": 0.1},
        {"metric": "errors", "ratio": 1.5},
    ],
    "alpha": 0.05,
}
REASONS: dict[Candidate, str] = {
    "good": "Trying a delivery: heavy requests begin at fewer tokens",
    "harmful": "Trying a delivery: round robin ignores which instance holds the cache",
}
CHOICES = (
    ("good", "Deliver a good candidate", "Another size counts as heavy. It does no harm and goes live."),
    ("harmful", "Deliver a harmful candidate", "Sends requests round robin, away from cached prompts. It is stopped."),
)
AGAIN = "Trying the harmful candidate of the demo once more"
HEAVY = (12_000, 20_000)  # tokens; the good candidate takes the value that is not live
HARMFUL = "round_robin"


@dataclass(frozen=True, slots=True)
class InTheWay:
    """Why no trial can start now, and the page on which to resolve it."""

    text: str
    href: str


def short_plan(policy: Policy) -> Plan | None:
    """Return a trial's plan for any draft; None if it would affect a real engine or the policy requires a longer
    plan."""
    pools = policies.pools_of(policy)
    if not _simulated(pools) or policy.direct != Direct.ALLOWED:
        return None
    names = [pool.name for pool in pools]
    return parse_plan({**PLAN, "pools": names}, pools=names, approvals_needed=policy.approvals_needed)


def _simulated(pools: list[Pool]) -> bool:
    return bool(pools) and all(KINDS[pool.kind].simulated for pool in pools if pool.kind in KINDS)


@dataclass(frozen=True, slots=True)
class TrialOffer:
    policy: str
    refusal: InTheWay | None


def offered() -> TrialOffer | None:
    """Return the trial for the policy of the simulated pools; None if it would affect a real engine."""
    pools = list(Pool.objects.filter(ephemeral_owner="", mode=SERVE))
    names = {pool.policy for pool in pools}
    if not _simulated(pools) or len(names) != 1:
        return None
    policy = Policy.objects.filter(name=names.pop()).first()
    return None if policy is None else TrialOffer(policy.name, _refusal(policy))


def _refusal(policy: Policy) -> InTheWay | None:
    """Return why no trial can start. A draft without changes does not count, because opening the editor creates one."""
    held = selectors.open_delivery(policy)
    if held is not None:
        text = f"{held.candidate.label} is being delivered: wait for its end, or abort it"
        return InTheWay(text, reverse("delivery", args=[held.pk]))
    draft, live = policies.open_draft(policy), policies.live_version(policy)
    if draft is None or (draft.based_on == live.number and draft.upgraded == live.upgraded):
        return None
    text = f"a draft of {draft.updated_by} is open: deliver or discard it first"
    return InTheWay(text, reverse("draft", args=[policy.name]))


def start(policy: Policy, kind: Candidate, actor: Actor) -> Delivery:
    """Propose the candidate and, if no approval is needed, start it."""
    refusal = _refusal(policy)
    if refusal:
        raise Conflict(refusal.text, kind="open")
    drafts.open_draft(policy, actor)
    draft = drafts.patch_draft(policy, _overrides(policy, kind), actor)
    again = AGAIN if selectors.failed_before(policy, draft.upgraded) else ""
    made = services.propose(policy, PLAN, actor, REASONS[kind], if_match=draft.etag, again=again)
    return services.begin(made, actor).delivery


def _overrides(policy: Policy, kind: Candidate) -> JsonObject:
    live = policies.live_version(policy).upgraded
    if kind == "good":
        return {
            "classes.heavy_new_tokens": next(
                size for size in HEAVY if size != documents.values_of(live)["classes.heavy_new_tokens"]
            )
        }
    return {"strategy.name": HARMFUL if strategy_of(live) != HARMFUL else "random"}
