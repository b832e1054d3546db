"""Changing policies: drafts, publication, rollback. The database decides; Redis is told afterwards."""

import re
import time
from dataclasses import dataclass
from typing import Any

import redis
import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.audit import services as audit
from controlplane.audit.events import announce
from controlplane.audit.services import SYSTEM, Actor
from controlplane.policies import acks, publishing, selectors
from controlplane.policies.acks import Ack
from controlplane.policies.errors import Conflict, FieldError, NothingToPublish, Refused
from controlplane.policies.models import Draft, Policy, PolicyVersion
from fleet.models import Pool
from router import wire
from router.policy import document as documents

log = structlog.get_logger(__name__)

REASON_MIN = 10  # characters
REASON_MAX = 500
DEFAULT_POLICY = "default"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")
RESERVED = {"schema", "new"}  # words in the addresses of pages and API


@dataclass(frozen=True, slots=True)
class Publication:
    version: PolicyVersion
    acks: tuple[Ack, ...]
    missing: tuple[str, ...]  # live routers that had not answered within a second
    pools: tuple[str, ...]
    stored_only: bool  # Redis was away: routers take the version up when it is back

    @property
    def summary(self) -> str:
        """What the publication has reached, in words."""
        if self.stored_only:
            return "stored; routers will take it up when Redis is back"
        if not self.pools:
            return "no pool uses this policy yet"
        routers = len(self.acks) + len(self.missing)
        if not routers:
            return "no router is running; the first one to start will take it up"
        slowest = f", {max(ack.ms for ack in self.acks):.0f} ms" if self.acks else ""
        late = f"; not heard from {', '.join(self.missing)}" if self.missing else ""
        return f"{len(self.acks)}/{routers} routers{slowest}{late}"


def check_reason(reason: str) -> str:
    reason = reason.strip()
    if not REASON_MIN <= len(reason) <= REASON_MAX:
        message = f"say why in {REASON_MIN} to {REASON_MAX} characters; this has {len(reason)}"
        raise Refused("the reason is missing or too short", (FieldError("reason", reason, message),))
    return reason


def check_document(document: object) -> dict[str, Any]:
    """The document with every default filled in; Refused with a path for each thing that is wrong."""
    try:
        return documents.dump(documents.parse(document))
    except documents.InvalidDocument as error:
        raise _refused(error) from None


def default_document(route: str) -> dict[str, Any]:
    try:
        return documents.default(route)
    except documents.InvalidDocument as error:
        raise _refused(error) from None


def overridden(policy: Policy, overrides: dict[str, Any]) -> dict[str, Any]:
    """The draft's document with values replaced by dotted path; not validated yet."""
    draft = selectors.open_draft(policy)
    if draft is None:
        raise _gone(policy, None)
    return documents.apply_overrides(draft.document, overrides)


def _refused(error: documents.InvalidDocument) -> Refused:
    problems = tuple(FieldError(p.path, p.value, p.message) for p in error.errors)
    return Refused("the policy document is not valid", problems)


def create_policy(name: str, document: dict[str, Any], actor: Actor, reason: str) -> Publication:
    if not NAME.fullmatch(name) or name in RESERVED:
        message = "a name has 1 to 50 characters: small letters, digits and hyphens, a letter or digit first"
        raise Refused("the name is not usable", (FieldError("name", name, message),))
    reason, document = check_reason(reason), check_document(document)
    try:
        with transaction.atomic():
            policy = Policy.objects.create(name=name)
            version = _add_version(policy, 1, document, actor, reason)
            audit.record(actor, "policy.create", f"policy {name} v1", reason, None, document)
    except IntegrityError:
        raise Conflict(f"there is a policy {name} already", kind="exists") from None
    return _tell_routers(version, acks.open_waiter())


def ensure_default_policy() -> Policy:
    """The policy that the demo pool runs; made once, with the defaults."""
    policy, _ = Policy.objects.get_or_create(name=DEFAULT_POLICY)
    if not policy.versions.exists():
        try:
            with transaction.atomic():
                document = check_document(documents.default())
                _add_version(policy, 1, document, SYSTEM, "First version, with the defaults")
                audit.record(SYSTEM, "policy.create", f"policy {policy.name} v1", "Made at first start", None, document)
        except IntegrityError:
            log.info("policy.default_made_elsewhere")
    return policy


def _add_version(
    policy: Policy, number: int, document: dict[str, Any], actor: Actor, reason: str, **links: Any
) -> PolicyVersion:
    return PolicyVersion.objects.create(
        policy=policy,
        number=number,
        document=document,
        sha256=documents.sha256(document),
        reason=reason,
        actor_kind=actor.kind,
        actor_name=actor.name,
        **links,
    )


# Drafts


def open_draft(policy: Policy, actor: Actor) -> Draft:
    """The policy's open draft, or a new one that starts from the live version."""
    live = selectors.live_version(policy)
    draft, created = Draft.objects.get_or_create(
        policy=policy,
        defaults={
            "document": live.document,
            "based_on": live.number,
            "opened_by": actor.name,
            "updated_by": actor.name,
        },
    )
    if created:
        log.info("policy.draft_opened", policy=policy.name, based_on=live.number, actor=actor.name)
    return draft


def save_draft(
    policy: Policy, document: object, actor: Actor, *, if_match: str | None = None, based_on: int | None = None
) -> Draft:
    """Store a valid document as the next revision. `if_match`: the etag that the caller saw; None overwrites.

    `based_on` moves the draft onto another live version, after a conflict was settled.
    """
    document = check_document(document)
    draft = selectors.open_draft(policy)
    if draft is None:
        raise _gone(policy, document)
    _check_etag(draft, if_match, document)
    changes: dict[str, Any] = {
        "document": document,
        "revision": draft.revision + 1,
        "updated_by": actor.name,
        "updated_at": timezone.now(),
    }
    if based_on is not None:
        changes["based_on"] = based_on
    if not Draft.objects.filter(pk=draft.pk, revision=draft.revision).update(**changes):
        raise _moved(policy, document)
    draft.refresh_from_db()
    return draft


def discard_draft(policy: Policy, actor: Actor, *, if_match: str | None = None) -> None:
    draft = selectors.open_draft(policy)
    if draft is None:
        raise _gone(policy, None)
    _check_etag(draft, if_match, None)
    with transaction.atomic():
        deleted, _ = Draft.objects.filter(pk=draft.pk, revision=draft.revision).delete()
        if not deleted:
            raise _moved(policy, None)
        audit.record(actor, "policy.discard_draft", f"policy {policy.name}", "", draft.document, None)


def _check_etag(draft: Draft, if_match: str | None, mine: dict[str, Any] | None) -> None:
    if if_match is not None and if_match != draft.etag:
        raise _moved(draft.policy, mine)


def _moved(policy: Policy, mine: dict[str, Any] | None) -> Conflict:
    draft = selectors.open_draft(policy)
    if draft is None:
        return _gone(policy, mine)
    base = policy.versions.filter(number=draft.based_on).first()
    return Conflict(
        f"the draft was saved by {draft.updated_by} meanwhile (revision {draft.revision})",
        kind="draft",
        base=base.document if base else None,
        theirs=draft.document,
        mine=mine,
        current=draft.etag,
    )


def _gone(policy: Policy, mine: dict[str, Any] | None) -> Conflict:
    live = selectors.live_version(policy)
    return Conflict(
        f"there is no open draft of {policy.name}; v{live.number} by {live.actor_name} is live",
        kind="gone",
        theirs=live.document,
        mine=mine,
        current=live.etag,
    )


# Publication


def publish(policy: Policy, actor: Actor, reason: str, *, if_match: str | None = None) -> Publication:
    """Make the draft the live version. `if_match`: the draft's etag that the caller looked at."""
    reason = check_reason(reason)
    draft = selectors.open_draft(policy)
    if draft is None:
        raise _gone(policy, None)
    _check_etag(draft, if_match, draft.document)
    document = check_document(draft.document)
    live = selectors.live_version(policy)
    check_base(draft, live)
    if documents.sha256(document) == live.sha256:
        raise NothingToPublish(f"the draft equals v{live.number}, which is live: nothing to publish")
    return _publish(policy, live, document, actor, reason, draft=draft)


def check_base(draft: Draft, live: PolicyVersion) -> None:
    """Conflict when another version has gone live since the draft was opened."""
    if draft.based_on == live.number:
        return
    base = draft.policy.versions.filter(number=draft.based_on).first()
    raise Conflict(
        f"v{live.number} was published by {live.actor_name} meanwhile; this draft started from v{draft.based_on}",
        kind="live",
        base=base.document if base else None,
        theirs=live.document,
        mine=draft.document,
        current=live.etag,
    )


def rollback(policy: Policy, to_number: int, actor: Actor, reason: str, *, if_match: str | None = None) -> Publication:
    """Publish the document of an earlier version as a new one. `if_match`: the etag of the live version seen."""
    reason = check_reason(reason)
    live, target = selectors.live_version(policy), selectors.version(policy, to_number)
    if if_match is not None and if_match != live.etag:
        raise Conflict(
            f"v{live.number} was published by {live.actor_name} meanwhile",
            kind="stale",
            base=live.document,
            theirs=live.document,
            mine=target.document,
            current=live.etag,
        )
    if target.sha256 == live.sha256:
        raise NothingToPublish(f"v{to_number} holds the same document as v{live.number}, which is live")
    # Limits may have become narrower since: what is not valid today must not reach a router.
    document = check_document(target.document)
    return _publish(policy, live, document, actor, reason, rollback_of=to_number)


def _publish(
    policy: Policy,
    live: PolicyVersion,
    document: dict[str, Any],
    actor: Actor,
    reason: str,
    *,
    draft: Draft | None = None,
    rollback_of: int | None = None,
) -> Publication:
    waiter = acks.open_waiter()
    try:
        version = _store(policy, live, document, actor, reason, draft=draft, rollback_of=rollback_of)
    except BaseException:
        if waiter is not None:
            waiter.close()
        raise
    return _tell_routers(version, waiter)


def _store(
    policy: Policy,
    live: PolicyVersion,
    document: dict[str, Any],
    actor: Actor,
    reason: str,
    *,
    draft: Draft | None,
    rollback_of: int | None,
) -> PolicyVersion:
    """Claim the draft, add the version, write the audit entry: all of it or nothing."""
    try:
        with transaction.atomic():
            if draft is not None and not Draft.objects.filter(pk=draft.pk, revision=draft.revision).delete()[0]:
                raise _moved(policy, draft.document)
            version = _add_version(
                policy,
                live.number + 1,
                document,
                actor,
                reason,
                based_on=live.number,
                rollback_of=rollback_of,
                draft_etag=draft.etag if draft else "",
            )
            action = "policy.publish" if rollback_of is None else "policy.rollback"
            audit.record(actor, action, f"policy {policy.name} v{version.number}", reason, live.document, document)
    except IntegrityError:
        winner = selectors.live_version(policy)
        raise Conflict(
            f"v{winner.number} was published by {winner.actor_name} a moment earlier",
            kind="live",
            base=live.document,
            theirs=winner.document,
            mine=document,
            current=winner.etag,
        ) from None
    return version


def _tell_routers(version: PolicyVersion, waiter: acks.AckWaiter | None) -> Publication:
    policy = version.policy
    pools = tuple(pool.name for pool in selectors.pools_of(policy))
    since = time.monotonic()
    try:
        if waiter is None:
            raise redis.ConnectionError("no subscription")
        routers = acks.live_routers() if pools else []
        for pool in pools:
            publishing.put(pool, policy.name, version.number, version.document)
        heard = waiter.wait(version.number, pools, routers, since)
    except redis.RedisError as error:
        log.warning("policy.stored_only", policy=policy.name, version=version.number, error=str(error))
        return Publication(version, (), (), pools, stored_only=True)
    finally:
        if waiter is not None:
            waiter.close()
    missing = tuple(sorted(set(routers) - {ack.router for ack in heard}))
    text = f"{policy.name} v{version.number} published: {version.reason}"
    announce("policy.published", f"policy {policy.name}", text, version.actor_name)
    return Publication(version, heard, missing, pools, stored_only=False)


def republish_missing() -> list[str]:
    """One step of the loop that brings Redis in line with the database; the pools it wrote or removed."""
    # Redis first: a pool that appears in the database in between is then not taken for a stray one.
    strays = {name.decode() for name in publishing.connect().smembers(wire.POOLS)}  # type: ignore[union-attr]
    wanted = dict(Pool.objects.filter(ephemeral_owner="").values_list("name", "policy"))
    live = {policy.name: selectors.live_version(policy) for policy in selectors.policies() if policy.versions.exists()}
    held = publishing.published(list(wanted))
    changed = []
    for pool, name in sorted(wanted.items()):
        version = live.get(name)
        if version is not None and not _holds(held[pool], version):
            publishing.put(pool, name, version.number, version.document)
            changed.append(pool)
    ephemeral = set(Pool.objects.exclude(ephemeral_owner="").values_list("name", flat=True))
    for pool in sorted(strays - set(wanted) - ephemeral):
        if not pool.startswith("exp-"):
            publishing.remove(pool)
            changed.append(pool)
    if changed:
        log.info("policy.republished", pools=changed)
    return changed


def _holds(value: dict[str, Any] | None, version: PolicyVersion) -> bool:
    if value is None:
        return False
    held = (value.get("policy"), value.get("version"), value.get("sha256"))
    return held == (version.policy.name, version.number, version.sha256)
