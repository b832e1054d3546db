"""Schemas of the delivery operations."""

from datetime import datetime
from typing import Any, Literal

import msgspec
from django.utils import timezone
from ninja import Field, Schema

from controlplane.doors.api.etags import Versioned
from controlplane.doors.api.routes.traffic.policy_schemas import DryRun, Emergency, MadeFrom, Reason
from controlplane.doors.api.unread import Body
from controlplane.traffic.deliveries import results, selectors, states
from controlplane.traffic.deliveries.foresight import foresee
from controlplane.traffic.deliveries.foresight.foresee import Foresight
from controlplane.traffic.deliveries.judge.step import unwatched_since
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.moving import clock_s
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.deliveries.services import MORE_PAIRS
from controlplane.traffic.deliveries.states import SPLIT, STILL
from controlplane.traffic.deliveries.timing import freezes
from controlplane.traffic.deliveries.timing.freezing import NAME_MAX
from controlplane.traffic.policies.drafts.services import REASON_MAX

STATES_HELP = "Open: proposed, ready, arming, step, holding, waiting, paused, baking. Others have ended"


class VersionRef(Schema):
    number: int
    sha256: str


class ApprovalOut(Schema):
    by: str = Field(validation_alias="actor_name")
    comment: str
    at: datetime


class HoldOut(Schema):
    code: str
    text: str


class LookOut(Schema):
    id: int
    at: datetime
    state: str
    step: int = Field(description="From 1")
    generation: int
    findings: list[dict[str, Any]] = Field(
        description="Per guard and class: estimate, lower, upper, n, cells, text, verdict (fail, fine, inconclusive, "
        "no_data, error, not_judged, or deferred: too rare to wait for, a later step judges it)"
    )
    proposal: str = Field(description="Decision of the judge; stay: no change")
    why: str
    facts: dict[str, Any]

    @staticmethod
    def resolve_step(row: Look) -> int:
        return row.step + 1


class SwitchbackOut(Schema):
    block: int = Field(description="From 1; blocks + 1 once all are over and late answers are waited for")
    blocks: int
    left_s: float = Field(description="Of the block")
    schedule: list[Literal["candidate", "control"]] = Field(description="Arm of each block, as drawn")


class StepResultOut(Schema):
    step: int = Field(description="From 1")
    at: datetime
    what: str = Field(description="The transition that ended or stopped the step")
    shown: list[dict[str, Any]] = Field(
        description="Per comparison that had to be fine, and guard that failed: metric, class, pool, estimate, lower, "
        "upper, n, text, word (better, no worse, "
        "enough to go on, worse, within or not surely beyond the limit, or cannot tell)"
    )


class DeliveryOut(Schema):
    id: int
    etag: str = Field(description="Send as If-Match to act, as If-None-Match to wait for the next change")
    policy: str = Field(validation_alias="policy.name")
    candidate: VersionRef
    base: VersionRef = Field(description="Live when it was proposed")
    state: str = Field(description=STATES_HELP)
    open: bool = Field(validation_alias="is_open")
    outcome: str = Field(
        description="Empty while it advances by itself; delivered, guard or person: what ended it; needs_person; time"
    )
    why: str = Field(description="The sentence of the latest transition")
    by: str = Field(description="Who or what caused it")
    what: str = Field(description="The latest transition; empty after the proposal")
    step: int = Field(description="From 1")
    steps: int
    share: float = Field(description="Share of the requests, 0 to 1, that the candidate decides now")
    shadow: float = Field(description="Share of the requests, 0 to 1, that the candidate now decides in shadow")
    step_clock_s: float = Field(description="Seconds that the step has run, without holds")
    stands_still: bool = Field(
        description="Holding, waiting, paused or not judged for 30 s: live decides every request"
    )
    freeze_ends: str = Field(description="End of the freeze that holds it, in the freeze's time zone; else empty")
    switchback: SwitchbackOut | None = Field(description="Set while its step is a switchback")
    results: list[StepResultOut] = Field(description="Evidence of each step that has ended; kept permanently")
    holds: list[HoldOut]
    generation: int
    plan: dict[str, Any]
    plan_sha256: str
    approvals: list[ApprovalOut]
    approvals_needed: int = Field(validation_alias="plan.approvals.needed")
    emergency: str
    again: str
    reason: str
    proposed_by: str
    proposed_at: datetime
    ready_at: datetime | None
    starts_at: datetime | None = Field(description="Start time in the plan")
    started_at: datetime | None
    state_at: datetime = Field(description="Time at which it entered this state")
    promoted_at: datetime | None = Field(description="When the candidate went live")
    ended_at: datetime | None
    look: LookOut | None = Field(validation_alias="looks.first", description="The latest judgement")

    @staticmethod
    def resolve_step(row: Delivery) -> int:
        return row.step + 1

    @staticmethod
    def resolve_results(row: Delivery) -> Any:
        return msgspec.to_builtins(results.read(row.results, stored_plan.read(row.plan)))

    @staticmethod
    def resolve_outcome(row: Delivery) -> str:
        return states.word(row.state, row.what)

    @staticmethod
    def resolve_share(row: Delivery) -> float:
        return 0.0 if unwatched_since(row, timezone.now()) else row.share

    @staticmethod
    def resolve_stands_still(row: Delivery) -> bool:
        return row.state in STILL or unwatched_since(row, timezone.now()) is not None

    @staticmethod
    def resolve_freeze_ends(row: Delivery) -> str:
        frozen = selectors.keeps_from_going_on(row, timezone.now())
        return freezes.ends(*frozen) if frozen else ""

    @staticmethod
    def resolve_switchback(row: Delivery) -> dict[str, Any] | None:
        step = row.plan["steps"][row.step]
        if row.state not in SPLIT or step["mode"] != "switchback" or not row.blocks:
            return None
        left_s = (row.block + 1) * step["block_s"] - clock_s(row, timezone.now())
        return {
            "block": row.block + 1,
            "blocks": len(row.blocks),
            "left_s": round(max(0.0, left_s), 1) if row.block < len(row.blocks) else 0.0,
            "schedule": ["candidate" if share else "control" for share in row.blocks],
        }

    @staticmethod
    def resolve_steps(row: Delivery) -> int:
        return len(row.plan["steps"])

    @staticmethod
    def resolve_step_clock_s(row: Delivery) -> float:
        return round(clock_s(row, timezone.now()), 1)


class ForeseenOut(Schema):
    step: int = Field(description="From 1")
    pool: str = Field(description="Empty: of all")
    request_class: str = Field(serialization_alias="class", description="Empty: of all")
    text: str


class ForesightOut(Schema):
    traffic: str = Field(description="What it was computed from, and how old that is; empty: no step compares")
    lines: list[ForeseenOut] = Field(description="What a step cannot show in its time, and what a switchback can show")


class ProposedOut(DeliveryOut):
    foreseen: ForesightOut = Field(description="What the plan can show with the recent traffic; refuses nothing")

    @staticmethod
    def resolve_foreseen(row: Delivery) -> Foresight:
        return foresee.of_delivery(row)


class DeliverIn(Body):
    plan: dict[str, Any] | None = Field(
        None,
        description="See docs/delivery.md; left out: shadow, canaries of 5 and 25 %, full",
        examples=[{"steps": [{"mode": "canary", "share": 0.05, "for_s": 600}, {"mode": "full", "bake_s": 1800}]}],
    )
    reason: Reason
    again: str = Field("", max_length=REASON_MAX, description="Why a document that failed before is tried again")
    emergency: Emergency = ""


class StartIn(Body):
    at: str = Field(max_length=16, examples=["2026-08-03T03:00"], description="Local time")
    zone: str = Field(max_length=64, examples=["Europe/Berlin"])


class DeliverDocumentIn(DeliverIn):
    document: dict[str, Any]
    based_on: MadeFrom = None
    pools: list[str] | None = Field(None, max_length=1000, description="In place of the plan's")
    start: StartIn | None = Field(None, description="In place of the plan's")
    dry_run: DryRun = False


class DocumentDeliveryOut(Schema):
    live: int | None = Field(None, description="The version that is live with this document: nothing is delivered")
    delivery: ProposedOut | None = Field(
        None, description="For a dry run: the delivery as it would be created, with its id"
    )


class ActReason(Body):
    reason: str = Field("", max_length=REASON_MAX)


class RequiredReason(Body):
    reason: str = Field(min_length=1, max_length=REASON_MAX)


class ExtendIn(RequiredReason):
    pairs: int = Field(MORE_PAIRS, ge=1, le=int(NUMBERS["switchback.pairs"].range[1]), description="That are added")


class ApproveIn(Body):
    comment: str = Field("", max_length=REASON_MAX)
    emergency: Emergency = Field("", description="Why the rules, and a freeze, are bypassed; requires the scope admin")


class RulesOut(Versioned):
    direct: str = Field(description="Who may publish without a delivery: allowed, admin or never")
    approvals_needed: int = Field(description="Minimum number of approvals in a plan")
    least_share: float = Field(description="0 to 0.5, of a canary, in the plans of those who may not go live directly")
    least_for_s: int = Field(description="Minimum duration of that canary, or of the whole switchback")
    least_bake_s: int = Field(description="Minimum duration of `full` in such a plan")


class RulesIn(Body):
    direct: Literal["allowed", "admin", "never"]
    approvals_needed: int = Field(ge=0, le=10)
    least_share: float | None = Field(None, ge=0.001, le=0.5, description="Unchanged if left out; so are the next two")
    least_for_s: int | None = Field(None, ge=10, le=7 * 86_400)
    least_bake_s: int | None = Field(None, ge=0, le=7 * 86_400)
    reason: Reason


class FreezeOut(Versioned):
    id: int
    name: str
    policies: list[str] = Field(description="Empty: all")
    start: str = Field(description="Local time of the first occurrence")
    end: str
    zone: str
    rrule: str
    behaviour: str
    reason: str
    created_by: str
    created_at: datetime


class FreezeIn(Body):
    name: str = Field(min_length=1, max_length=NAME_MAX, examples=["weekends"])
    policies: list[str] = Field([], max_length=1000, description="Empty: all")
    start: str = Field(max_length=16, examples=["2026-12-24T18:00"], description="Local time of the first occurrence")
    end: str = Field(max_length=16, examples=["2026-12-27T08:00"])
    zone: str = Field(max_length=64, examples=["Europe/Berlin"])
    rrule: str = Field("", max_length=200, examples=["FREQ=WEEKLY"], description="Left out: once")
    behaviour: Literal["hold", "abort"] = Field("hold", description="What happens to running deliveries")
    reason: Reason


class FreezeChange(Body):
    name: str | None = Field(None, min_length=1, max_length=NAME_MAX)
    policies: list[str] | None = Field(None, max_length=1000)
    start: str | None = Field(None, max_length=16)
    end: str | None = Field(None, max_length=16)
    zone: str | None = Field(None, max_length=64)
    rrule: str | None = Field(None, max_length=200)
    behaviour: Literal["hold", "abort"] | None = None
    reason: str | None = Field(None, max_length=REASON_MAX)
