"""Creates, publishes and rolls back policies. The database is changed first, then Redis."""

from collections.abc import Mapping
from functools import partial

import structlog
from django.db import IntegrityError, transaction

from controlplane.people.audit import services as audit
from controlplane.people.audit.services import SYSTEM, Actor
from controlplane.traffic.deliveries import services as deliveries
from controlplane.traffic.deliveries.states import Trigger
from controlplane.traffic.policies import publication, selectors, versions
from controlplane.traffic.policies.acknowledged import AckWaiter, subscribed
from controlplane.traffic.policies.drafts import versioned as drafts
from controlplane.traffic.policies.drafts.services import (
    REASON_MAX,
    check_document,
    check_name,
    check_reason,
    default_document,
    discard_draft,
    open_draft,
    patch_draft,
    save_draft,
    versioned,
)
from controlplane.traffic.policies.errors import Conflict, NothingToPublish, stale_if_overtaken
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from controlplane.traffic.policies.publication import republish_missing
from router.contract.values.json_value import Json, JsonObject
from router.policy.schema import document as documents

__all__ = [
    "REASON_MAX",
    "Publication",
    "create_policy",
    "default_document",
    "discard_draft",
    "ensure_default_policy",
    "ensure_offload_policy",
    "open_draft",
    "patch_draft",
    "publish",
    "publish_document",
    "republish_missing",
    "rollback",
    "save_draft",
]

log = structlog.get_logger(__name__)

DEFAULT_POLICY = "default"
OFFLOAD_POLICY = "prefill-decode"


Publication = drafts.Publication[PolicyVersion]


def create_policy(name: str, document: JsonObject, actor: Actor, reason: str) -> Publication:
    name, reason, document = check_name(name), check_reason(reason), check_document(document)
    try:
        with transaction.atomic():
            policy = Policy.objects.create(name=name, **deliveries.strictest())
            version = versions.add_version(policy, document, actor, reason)
            audit.record(actor, "policy.create", f"policy {name} v1", reason, None, document)
    except IntegrityError:
        raise Conflict(f"there is a policy {name} already", kind="exists") from None
    with subscribed() as waiter:
        return _tell_routers(version, waiter)


def ensure_default_policy(overrides: Mapping[str, Json] | None = None) -> Policy:
    """Return the policy of pools that name none; it is created once, from the default document."""
    reason = "First version, for the demo traffic" if overrides else "First version, with the defaults"
    return _ensure(DEFAULT_POLICY, documents.apply_overrides(documents.default(), overrides or {}), reason)


def ensure_offload_policy() -> Policy:
    """Return the policy of pools whose instances either prefill or decode; it is created once."""
    return _ensure(OFFLOAD_POLICY, documents.default("adaptive_offload"), "First version, for prefill and decode pools")


def _ensure(name: str, document: JsonObject, reason: str) -> Policy:
    policy, _ = Policy.objects.get_or_create(name=name)
    if not policy.versions.exists():
        try:
            with transaction.atomic():
                document = check_document(document)
                versions.add_version(policy, document, SYSTEM, reason)
                audit.record(SYSTEM, "policy.create", f"policy {policy.name} v1", "Made at first start", None, document)
        except IntegrityError:
            log.info("policy.made_elsewhere", policy=name)
    return policy


def publish(
    policy: Policy,
    actor: Actor,
    reason: str,
    *,
    if_match: str | None = None,
    abort_open: bool = False,
    emergency: str = "",
) -> Publication:
    """Publish the draft. `if_match` is the ETag of the draft that the caller saw. `abort_open` ends the open delivery,
    which is otherwise a conflict. `emergency` is an administrator's reason for bypassing the rules.
    """
    with subscribed() as waiter:
        version = _publish(policy, actor, reason, if_match=if_match, abort_open=abort_open, emergency=emergency)
        return _tell_routers(version, waiter)


def publish_document(
    policy: Policy,
    document: object,
    actor: Actor,
    reason: str,
    *,
    if_match: str | None = None,
    based_on: int | None = None,
    abort_open: bool = False,
    emergency: str = "",
    dry_run: bool = False,
) -> Publication:
    """Publish the document of a file, under the same rules as a draft. `if_match` is the ETag of the live version that
    the caller saw, `based_on` the version from which the file was made. A dry run passes every check and is rolled
    back, without reaching a router."""
    with subscribed() as waiter:
        with stale_if_overtaken(if_match), transaction.atomic():
            drafts.check_live(versioned(policy), if_match)
            draft = drafts.draft_of_file(versioned(policy), document, actor, based_on)
            version = _publish(policy, actor, reason, if_match=draft.etag, abort_open=abort_open, emergency=emergency)
            transaction.set_rollback(dry_run)
        if dry_run:
            names = tuple(pool.name for pool in selectors.pools_of(policy))
            return Publication(version=version, pools=names, dry_run=True)
        return _tell_routers(version, waiter)


def _publish(
    policy: Policy, actor: Actor, reason: str, *, if_match: str | None, abort_open: bool, emergency: str
) -> PolicyVersion:
    reason, emergency = check_reason(reason), emergency.strip()
    draft, live = drafts.draft_to_publish(versioned(policy), if_match)
    document = check_document(draft.upgraded)
    if documents.values_of(document) == documents.values_of(live.upgraded):  # older documents may lack new parameters
        raise NothingToPublish(f"the draft equals v{live.number}, which is live: nothing to publish")
    change = deliveries.Change(deliveries.Way.PUBLISH, policy, actor, document, emergency=emergency)
    return _store(change, live, document, reason, draft=draft, abort_open=abort_open)


def rollback(policy: Policy, to_number: int, actor: Actor, reason: str, *, if_match: str | None = None) -> Publication:
    """Publish the document of an earlier version as a new version. `if_match` is the ETag of the live version that the
    caller saw. A version that was live before needs no approval and is not blocked by a freeze; an open delivery ends.
    """
    reason = check_reason(reason)
    live, target = selectors.live_version(policy), selectors.version(policy, to_number)
    drafts.check_live(versioned(policy), if_match, target.upgraded)
    # Limits may be narrower now, and a document that has become invalid must not reach a router.
    document = check_document(target.upgraded)
    if documents.values_of(document) == documents.values_of(live.upgraded):
        raise NothingToPublish(f"v{to_number} holds the same document as v{live.number}, which is live")
    with subscribed() as waiter:
        change = deliveries.Change(deliveries.Way.ROLL_BACK, policy, actor, target=target)
        return _tell_routers(_store(change, live, document, reason, rollback_of=to_number), waiter)


def _store(
    change: deliveries.Change,
    live: PolicyVersion,
    document: JsonObject,
    reason: str,
    *,
    draft: Draft | None = None,
    rollback_of: int | None = None,
    abort_open: bool = True,
) -> PolicyVersion:
    """Check the rules, claim the draft, end the open delivery, add the version and write the audit entry. All of this
    is one transaction, during which nobody else can change the policy or its rules."""
    policy, actor, emergency = change.policy, change.actor, change.emergency
    what = Trigger.OVERTAKE if rollback_of is None else Trigger.ROLL_BACK
    try:
        with transaction.atomic():
            versions.lock(policy.name)
            deliveries.check(change)
            draft_etag = drafts.claim(versioned(policy), draft)
            deliveries.overtake(policy, what, actor, reason, allowed=abort_open)
            version = versions.add_version(
                policy,
                document,
                actor,
                reason,
                based_on=live.number,
                rollback_of=rollback_of,
                draft_etag=draft_etag,
            )
            if not versions.go_live(version, live.number):
                raise IntegrityError("another version went live")
            drafts.record(versioned(policy), version, live, actor)
            if emergency:
                deliveries.record_emergency(policy, f"policy {policy.name} {version.label}", actor, emergency)
    except IntegrityError:
        raise drafts.overtaken(versioned(policy), live, document) from None
    return version


def _tell_routers(version: PolicyVersion, waiter: AckWaiter | None) -> Publication:
    policy = version.policy
    pools = tuple(pool.name for pool in selectors.pools_of(policy))
    write = partial(publication.publish, policy)
    return drafts.tell_routers(versioned(policy), version, waiter, write, acked=pools, concerned=pools)
