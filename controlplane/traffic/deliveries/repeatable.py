"""Delivers a document in one call that is safe to repeat, for example from a pipeline that runs again."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction

from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries import selectors
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan.default import default_plan
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.proposing import propose
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts import services as drafts
from controlplane.traffic.policies.drafts.versioned import check_live, draft_of_file
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Policy, PolicyVersion
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents


@dataclass(frozen=True, slots=True)
class Proposed:
    delivery: Delivery
    is_new: bool


def deliver_document(
    policy: Policy,
    document: object,
    plan: object,
    actor: Actor,
    reason: str,
    *,
    if_match: str | None = None,
    based_on: int | None = None,
    again: str = "",
    emergency: str = "",
    dry_run: bool = False,
) -> Proposed:
    """Return the delivery of this document, plan and base: an open or ended one, otherwise a new one. `plan` is None
    for the page's plan. `if_match` is the ETag of the live version that the caller saw, `based_on` the version from
    which the document was made, `again` the reason to deliver it again. A dry run passes every check and is rolled
    back. Raise NothingToPublish if the document is live.
    """
    document, again = drafts.check_document(document), again.strip()
    check_live(drafts.versioned(policy), if_match, document)
    found = _made_before(policy, document, plan, based_on, again)
    if found is not None:
        return Proposed(found, is_new=False)
    with transaction.atomic():
        draft = draft_of_file(drafts.versioned(policy), document, actor, based_on)
        wanted = usual_plan(policy) if plan is None else plan
        made = propose(policy, wanted, actor, reason, if_match=draft.etag, again=again, emergency=emergency)
        if again and not made.again:  # a person aborted the last delivery; a repeated call has the same `again`
            made.again = again[: drafts.REASON_MAX]
            made.save(update_fields=["again"])
        transaction.set_rollback(dry_run)
    return Proposed(made, is_new=True)


def usual_plan(policy: Policy, changes: Mapping[str, object] | None = None) -> JsonObject:
    """Return the plan that the page offers."""
    names = [pool.name for pool in policies.pools_of(policy)]
    return {**default_plan(names, policy.approvals_needed).canonical, **(changes or {})}


def _made_before(
    policy: Policy, document: JsonObject, plan: object, based_on: int | None, again: str
) -> Delivery | None:
    found = selectors.deliveries(policy).filter(candidate__sha256=documents.sha256(document)).first()
    live = policies.live_version(policy)
    if found is None or not _same_base(found, live, based_on) or not _same_plan(found, policy, plan):
        return None
    if found.is_open or found.candidate.number == live.number:
        return found
    if again and again != found.again:
        return None
    if found.state == State.DELIVERED:
        raise _replaced(found, live)
    return found


def _replaced(found: Delivery, live: PolicyVersion) -> Conflict:
    """Return the conflict that prevents a rerun pipeline from undoing a rollback."""
    by = f"v{live.number} by {live.actor_name} ({live.reason}) took its place"
    message = f"v{found.candidate.number} had this document, was delivered, and {by}: say why again"
    return Conflict(message, kind="live", current=live.etag)


def _same_base(found: Delivery, live: PolicyVersion, based_on: int | None) -> bool:
    if found.candidate.number == live.number:
        return True
    return found.base.sha256 == live.sha256 if based_on is None else found.base.number == based_on


def _same_plan(found: Delivery, policy: Policy, plan: object) -> bool:
    if plan is None:
        return True
    names = [pool.name for pool in policies.pools_of(policy)]
    try:
        asked = parse_plan(plan, pools=names, approvals_needed=policy.approvals_needed)
    except InvalidInput:
        return False  # the proposal reports the fault
    return asked.sha256 == found.plan_sha256
