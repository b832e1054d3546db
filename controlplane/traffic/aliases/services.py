"""Changes, publishes and rolls back the document Models. The database decides; Redis is written afterwards."""

import time
from dataclasses import dataclass

import redis
import structlog
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.people.audit import services as audit
from controlplane.people.audit.differences import audited_change
from controlplane.people.audit.services import Actor
from controlplane.people.notices.services import enqueue
from controlplane.traffic.aliases import check, publication, selectors
from controlplane.traffic.aliases.models import ModelsDraft, ModelsVersion
from controlplane.traffic.aliases.redirect import ask_the_rules
from controlplane.traffic.aliases.selectors import Live
from controlplane.traffic.policies.drafts.services import check_reason
from controlplane.traffic.policies.errors import Conflict, NothingToPublish, stale_if_overtaken
from controlplane.traffic.policies.publication import Acknowledged, AckWaiter, subscribed
from fleet.events import announce
from fleet.redis import live_routers, ordered_write
from fleet.services import hold_fleet
from router.contract import models
from router.contract.json_value import JsonObject

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsPublication(Acknowledged):
    version: ModelsVersion


# The draft


@transaction.atomic
def open_draft(actor: Actor) -> ModelsDraft:
    """The open draft, or a new one that starts from the live version."""
    draft, created = _opened(actor)
    if created:
        audit.record(actor, "models.open_draft", "Models", "", None, {"based_on": draft.based_on})
    return draft


def _opened(actor: Actor) -> tuple[ModelsDraft, bool]:
    """Return the draft, and whether it is new."""
    live = selectors.live()
    defaults = {
        "document": live.document, "based_on": live.number, "opened_by": actor.name, "updated_by": actor.name
    }  # fmt: skip
    return ModelsDraft.objects.get_or_create(only=True, defaults=defaults)


@transaction.atomic
def save_draft(
    document: object, actor: Actor, *, if_match: str | None = None, based_on: int | None = None
) -> ModelsDraft:
    """Store the next revision. `if_match`: the etag that the caller saw; None overwrites any. `based_on`: the new
    base."""
    ModelsDraft.objects.update(revision=F("revision"))  # keeps others from saving meanwhile
    before = selectors.open_draft()
    draft = _saved(document, actor, if_match, based_on)
    if before is not None and before.etag != draft.etag:
        was, now = audited_change(before.document, draft.document)
        rebased = {} if before.based_on == draft.based_on else {"based_on": draft.based_on}
        audit.record(actor, "models.edit_draft", "Models", "", was, {**now, **rebased})
    return draft


def _saved(document: object, actor: Actor, if_match: str | None, based_on: int | None) -> ModelsDraft:
    made = models.dump(check.parsed(document))
    draft = selectors.open_draft()
    if draft is None:
        raise _gone(made)
    if made == draft.document and based_on in (None, draft.based_on):
        return draft
    _check_etag(draft, if_match, made)
    base = selectors.version(based_on).number if based_on else draft.based_on
    same = ModelsDraft.objects.filter(pk=draft.pk, revision=draft.revision)
    revision = draft.revision + 1
    if not same.update(
        document=made, revision=revision, based_on=base, updated_by=actor.name, updated_at=timezone.now()
    ):
        raise _moved(made)
    draft.refresh_from_db()
    return draft


@transaction.atomic
def discard_draft(actor: Actor, *, if_match: str | None = None) -> None:
    draft = selectors.open_draft()
    if draft is None:
        raise _gone(None)
    _check_etag(draft, if_match, None)
    if not ModelsDraft.objects.filter(pk=draft.pk, revision=draft.revision).delete()[0]:
        raise _moved(None)
    audit.record(actor, "models.discard_draft", "Models", "", draft.document, None)


# Publishing


def publish(actor: Actor, reason: str, *, if_match: str | None = None, emergency: str = "") -> ModelsPublication:
    """Make the draft the live version. `emergency`: why an administrator goes past the rules."""
    with subscribed() as waiter:
        return _tell_routers(_publish(actor, reason, if_match=if_match, emergency=emergency), waiter)


def publish_document(
    document: object,
    actor: Actor,
    reason: str,
    *,
    if_match: str | None = None,
    based_on: int | None = None,
    emergency: str = "",
    dry_run: bool = False,
) -> ModelsPublication:
    """Make the document of a file the live version. `if_match`: the etag of the live version that the caller saw.
    `based_on`: the version that the document was made from. A dry run passes every check and is undone."""
    with subscribed() as waiter:
        with stale_if_overtaken(if_match), transaction.atomic():
            _check_live(if_match, models.dump(check.parsed(document)))
            draft = _draft_of(document, actor, based_on)
            version = _publish(actor, reason, if_match=draft.etag, emergency=emergency)
            transaction.set_rollback(dry_run)
        if dry_run:
            return ModelsPublication(version=version, dry_run=True)
        return _tell_routers(version, waiter)


def rollback(to: int, actor: Actor, reason: str, *, if_match: str | None = None) -> ModelsPublication:
    """Publish the document of an earlier version as a new one. No rule applies, but its pools must exist."""
    reason, live, target = check_reason(reason), selectors.live(), selectors.version(to)
    _check_live(if_match, target.document)
    if target.document == live.document:
        raise NothingToPublish(f"v{to} holds the same document as {live.label}, which is live")
    with subscribed() as waiter:
        return _tell_routers(_store(live, target.document, actor, reason, rollback_of=to), waiter)


def _draft_of(document: object, actor: Actor, based_on: int | None) -> ModelsDraft:
    """Make the document of a file the open draft, in the caller's transaction."""
    made, live, held = models.dump(check.parsed(document)), selectors.live(), selectors.open_draft()
    if held is not None and held.document not in (made, live.document):
        message = f"{held.updated_by} has a draft of Models open: publish or discard it first"
        raise Conflict(message, kind="draft", theirs=held.document, mine=made, current=held.etag)
    if based_on is not None and based_on != live.number and made != live.document:
        raise _overtaken(live, made)
    _opened(actor)
    return _saved(made, actor, None, live.number or None)


def _publish(actor: Actor, reason: str, *, if_match: str | None, emergency: str) -> ModelsVersion:
    reason, emergency = check_reason(reason), emergency.strip()
    draft = selectors.open_draft()
    if draft is None:
        raise _gone(None)
    _check_etag(draft, if_match, draft.document)
    live = selectors.live()
    if draft.based_on != live.number:
        raise _overtaken(live, draft.document)
    if draft.document == live.document:
        raise NothingToPublish(f"the draft equals {live.label}, which is live: nothing to publish")
    return _store(live, draft.document, actor, reason, draft=draft, emergency=emergency)


def _store(
    live: Live,
    document: JsonObject,
    actor: Actor,
    reason: str,
    *,
    draft: ModelsDraft | None = None,
    rollback_of: int | None = None,
    emergency: str = "",
) -> ModelsVersion:
    """Check the pools, ask the rules, claim the draft, add the version, write the audit entry: in one transaction, in
    which no pool can be removed."""
    try:
        with transaction.atomic():
            hold_fleet()
            check.check(document, live.models)
            if rollback_of is None:
                ask_the_rules(live.models, models.parse(document), actor, f"Models v{live.number + 1}", emergency)
            if draft is not None and not ModelsDraft.objects.filter(pk=draft.pk, revision=draft.revision).delete()[0]:
                raise _moved(draft.document)
            version = ModelsVersion.objects.create(
                number=live.number + 1,
                document=document,
                sha256=models.sha256(document),
                reason=reason,
                actor_kind=actor.kind,
                actor_name=actor.name,
                based_on=live.number or None,
                rollback_of=rollback_of,
                draft_etag=draft.etag if draft else "",
            )
            word = "publish" if rollback_of is None else "rollback"
            audit.record(actor, f"models.{word}", str(version), reason, live.document, document)
            event = "models.published" if rollback_of is None else "models.rolled_back"
            facts: JsonObject = {"version": version.number, "before": live.number}
            enqueue(event, str(version), f"{version} by {actor.name}: {reason}", facts)
    except IntegrityError:
        raise _overtaken(selectors.live(), document) from None
    return version


def _tell_routers(version: ModelsVersion, waiter: AckWaiter | None) -> ModelsPublication:
    since, reached = time.monotonic(), (publication.OF_NO_POOL,)
    try:
        if waiter is None:
            raise redis.ConnectionError("no subscription")
        routers = live_routers()
        publication.publish()
        heard = waiter.wait(version.number, reached, routers, since)
    except ordered_write.FAILURES as error:
        log.warning("models.stored_only", version=version.number, error=str(error))
        return ModelsPublication(version=version, pools=reached, stored_only=True)
    missing = tuple(sorted(set(routers) - {ack.router for ack in heard}))
    text = f"{version} published by {version.actor_name}: {version.reason}"
    pools = tuple(sorted({target.pool for _, _, target in models.placed(models.parse(version.document))}))
    announce("models.published", "Models", text, version.actor_name, time.time(), pools)
    return ModelsPublication(version=version, acks=heard, missing=missing, pools=reached)


# Conflicts


def _check_etag(draft: ModelsDraft, if_match: str | None, mine: JsonObject | None) -> None:
    if if_match is not None and if_match != draft.etag:
        raise _moved(mine)


def _check_live(if_match: str | None, mine: JsonObject) -> None:
    live = selectors.live()
    if if_match is not None and if_match != live.etag:
        raise _overtaken(live, mine, kind="stale")


def _moved(mine: JsonObject | None) -> Conflict:
    draft = selectors.open_draft()
    if draft is None:
        return _gone(mine)
    said = f"The draft was saved by {draft.updated_by} meanwhile (revision {draft.revision})"
    return Conflict(said, kind="draft", theirs=draft.document, mine=mine, current=draft.etag)


def _gone(mine: JsonObject | None) -> Conflict:
    live = selectors.live()
    said = f"There is no open draft of Models; {live.label} by {live.by} is live"
    return Conflict(said, kind="gone", theirs=live.document, mine=mine, current=live.etag)


def _overtaken(live: Live, mine: JsonObject, kind: str = "live") -> Conflict:
    said = f"{live.label} was published by {live.by} meanwhile"
    return Conflict(said, kind=kind, theirs=live.document, mine=mine, current=live.etag)
