"""Versioned documents (each policy, and Models): their draft, conflicts about it, the record of a publication, and its
delivery to the routers."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import redis
import structlog
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from controlplane.people.audit import services as audit
from controlplane.people.audit.differences import audited_change
from controlplane.people.audit.services import Actor
from controlplane.people.notices.services import enqueue
from controlplane.traffic.policies.acknowledged import Acknowledged, AckWaiter
from controlplane.traffic.policies.errors import Conflict, NoSuchPolicy
from controlplane.traffic.policies.versioned import OpenDraft, PublishedVersion
from fleet.events import announce
from fleet.redis import live_routers, ordered_write
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, Problem

log = structlog.get_logger(__name__)
V = TypeVar("V", bound=PublishedVersion)
D = TypeVar("D", bound=OpenDraft)


@dataclass(frozen=True, slots=True)
class DraftedDocument(Generic[V, D]):
    """A document that has versions and at most one open draft."""

    name: str  # the name in messages
    subject: str  # the subject of audit entries and events
    word: str  # the first word of audit actions and events
    drafts: QuerySet[D]  # the open draft, if any
    identity: Mapping[str, object]  # fields that distinguish a new draft from the drafts of other documents
    live: Callable[[], V]
    version: Callable[[int], V]  # raises NoSuchPolicy
    checked: Callable[[object], JsonObject]  # checks the whole document; raises InvalidInput
    facts: JsonObject = field(default_factory=dict)  # further facts for notices and the log

    def draft(self) -> D | None:
        return self.drafts.first()


@dataclass(frozen=True, kw_only=True)  # no slots: Publication[V](...) sets an attribute of typing's, which may fail
class Publication(Acknowledged, Generic[V]):
    version: V


def open_draft(of: DraftedDocument[V, D], actor: Actor) -> D:
    """Return the open draft, or a new one that starts from the live version."""
    with transaction.atomic():
        draft, created = _opened(of, actor)
        if created:
            log.info(f"{of.word}.draft_opened", **of.facts, based_on=draft.based_on, actor=actor.name)
            audit.record(actor, f"{of.word}.open_draft", of.subject, "", None, {"based_on": draft.based_on})
        return draft


def _opened(of: DraftedDocument[V, D], actor: Actor) -> tuple[D, bool]:
    """Return (the draft, whether it is new)."""
    live = of.live()
    defaults = {"document": live.upgraded, "based_on": live.number, "opened_by": actor.name, "updated_by": actor.name}
    return of.drafts.get_or_create(**of.identity, defaults=defaults)


def save_draft(
    of: DraftedDocument[V, D],
    document: object,
    actor: Actor,
    *,
    if_match: str | None = None,
    based_on: int | None = None,
) -> D:
    """Store a valid document as the next revision. `if_match` is the ETag that the caller saw; None overwrites any.
    `based_on` rebases the draft onto another live version after a conflict has been settled."""
    with transaction.atomic():
        of.drafts.update(revision=F("revision"))  # keeps others from saving in the meantime
        before = of.draft()
        draft = _saved(of, document, actor, if_match, based_on)
        if before is not None and before.etag != draft.etag:
            was, now = audited_change(before.upgraded, draft.upgraded)
            rebased = {} if before.based_on == draft.based_on else {"based_on": draft.based_on}
            audit.record(actor, f"{of.word}.edit_draft", of.subject, "", was, {**now, **rebased})
        return draft


def _saved(of: DraftedDocument[V, D], document: object, actor: Actor, if_match: str | None, based_on: int | None) -> D:
    document, draft = of.checked(document), of.draft()
    if draft is None:
        raise gone(of, document)
    if document == draft.upgraded and based_on in (None, draft.based_on):
        return draft  # sent twice, or two people made the same change
    check_etag(of, draft, if_match, document)
    changes: dict[str, Any] = {
        "document": document,
        "revision": draft.revision + 1,
        "updated_by": actor.name,
        "updated_at": timezone.now(),
        **draft.saved_by(actor.person),
    }
    if based_on is not None:
        changes["based_on"] = _existing(of, based_on)
    if not _as_seen(of, draft).update(**changes):
        raise moved(of, document)
    draft.refresh_from_db()
    return draft


def _existing(of: DraftedDocument[V, D], number: int) -> int:
    try:
        return of.version(number).number
    except NoSuchPolicy as error:
        problem = Problem("based_on", number, str(error))
        raise InvalidInput("the draft cannot be based on that version", (problem,)) from None


def _as_seen(of: DraftedDocument[V, D], draft: D) -> QuerySet[D]:
    return of.drafts.filter(pk=draft.pk, revision=draft.revision)


def draft_of_file(of: DraftedDocument[V, D], document: object, actor: Actor, based_on: int | None) -> D:
    """Save the document of a file as the open draft, in the caller's transaction, so that a refusal leaves no draft.
    Raise Conflict if another person's draft is open, or if another version has gone live since `based_on`.
    """
    document, live, held = of.checked(document), of.live(), of.draft()
    if held is not None and held.upgraded not in (document, live.upgraded):
        message = f"{held.updated_by} has a draft of {of.name} open: publish or discard it first"
        raise Conflict(message, kind="draft", theirs=held.upgraded, mine=document, current=held.etag)
    if based_on is not None and document != live.upgraded:
        base = of.version(based_on)
        if base.upgraded != live.upgraded:
            by = f"{live.label} by {live.actor_name} ({live.reason})"
            message = f"the file was made from {base.label}, and {by} is live since: export it again"
            raise _of_live(live, message, "live", document, base.upgraded)
    _opened(of, actor)
    return _saved(of, document, actor, None, live.number)


def discard_draft(of: DraftedDocument[V, D], actor: Actor, *, if_match: str | None = None) -> None:
    draft = of.draft()
    if draft is None:
        raise gone(of, None)
    check_etag(of, draft, if_match, None)
    with transaction.atomic():
        if not _as_seen(of, draft).delete()[0]:
            raise moved(of, None)
        audit.record(actor, f"{of.word}.discard_draft", of.subject, "", draft.upgraded, None)


def seen_draft(of: DraftedDocument[V, D], if_match: str | None) -> D:
    """Return the draft. `if_match` is the ETag that the caller saw."""
    draft = of.draft()
    if draft is None:
        raise gone(of, None)
    check_etag(of, draft, if_match, draft.upgraded)
    return draft


def draft_to_publish(of: DraftedDocument[V, D], if_match: str | None) -> tuple[D, V]:
    """Return the draft and the live version that it replaces. `if_match`: the etag of the draft that the caller saw."""
    draft, live = seen_draft(of, if_match), of.live()
    check_base(of, draft, live)
    return draft, live


def claim(of: DraftedDocument[V, D], draft: D | None) -> str:
    """End the draft in the transaction of its publication. Return its ETag; empty without a draft."""
    if draft is None:
        return ""
    etag, pk = draft.etag, draft.pk
    if not of.drafts.filter(pk=pk, revision=draft.revision).delete()[0]:
        raise moved(of, draft.upgraded)
    return etag


def record(of: DraftedDocument[V, D], version: V, instead_of: V, actor: Actor) -> None:
    """Write the audit entry and the notice of a publication, in its transaction."""
    done, event = ("publish", "published") if version.rollback_of is None else ("rollback", "rolled_back")
    subject, reason = f"{of.subject} {version.label}", version.reason
    audit.record(actor, f"{of.word}.{done}", subject, reason, instead_of.upgraded, version.document)
    facts: JsonObject = {**of.facts, "version": version.number, "before": instead_of.number}
    enqueue(f"{of.word}.{event}", subject, f"{subject} by {actor.name}: {reason}", facts)


def tell_routers(
    of: DraftedDocument[V, D],
    version: V,
    waiter: AckWaiter | None,
    write: Callable[[], None],
    *,
    acked: tuple[str, ...],
    concerned: Iterable[str],
) -> Publication[V]:
    """Write a version to Redis and wait for the routers. `acked` are the pools in their acknowledgements; `concerned`
    are the pools whose requests the version changes."""
    since = time.monotonic()
    try:
        if waiter is None:
            raise redis.ConnectionError("no subscription")
        routers = live_routers() if acked else []
        write()
        acks = waiter.wait(version.number, acked, routers, since)
    except ordered_write.FAILURES as error:
        log.warning(f"{of.word}.stored_only", **of.facts, version=version.number, error=str(error))
        return Publication(version=version, pools=acked, stored_only=True)
    missing = tuple(sorted(set(routers) - {ack.router for ack in acks}))
    text = f"{version} published by {version.actor_name}: {version.reason}"
    announce(f"{of.word}.published", of.subject, text, version.actor_name, time.time(), tuple(concerned))
    return Publication(version=version, acks=acks, missing=missing, pools=acked)


# Conflicts


def check_base(of: DraftedDocument[V, D], draft: D, live: V) -> None:
    """Raise Conflict if another version has gone live since the draft was opened."""
    if draft.based_on != live.number:
        text = f"{live.label} was published by {live.actor_name} meanwhile; this draft started from v{draft.based_on}"
        raise _of_live(live, text, "live", draft.upgraded, _base(of, draft))


def check_etag(of: DraftedDocument[V, D], draft: D, if_match: str | None, mine: JsonObject | None) -> None:
    if if_match is not None and if_match != draft.etag:
        raise moved(of, mine)


def check_live(of: DraftedDocument[V, D], if_match: str | None, mine: JsonObject | None = None) -> None:
    """Raise Conflict unless the version that the caller saw is still live."""
    live = of.live()
    if if_match is not None and if_match != live.etag:
        text = f"{live.label} was published by {live.actor_name} meanwhile"
        raise _of_live(live, text, "stale", mine, live.upgraded)


def overtaken(of: DraftedDocument[V, D], before: V, mine: JsonObject) -> Conflict:
    """Return the conflict of a publication that another publication has preceded."""
    live = of.live()
    text = f"{live.label} was published by {live.actor_name} a moment earlier"
    return _of_live(live, text, "live", mine, before.upgraded)


def moved(of: DraftedDocument[V, D], mine: JsonObject | None) -> Conflict:
    draft = of.draft()
    if draft is None:
        return gone(of, mine)
    text = f"The draft was saved by {draft.updated_by} meanwhile (revision {draft.revision})"
    return Conflict(text, kind="draft", base=_base(of, draft), theirs=draft.upgraded, mine=mine, current=draft.etag)


def gone(of: DraftedDocument[V, D], mine: JsonObject | None) -> Conflict:
    live = of.live()
    text = f"There is no open draft of {of.name}; {live.label} by {live.actor_name} is live"
    return _of_live(live, text, "gone", mine, None)


def _base(of: DraftedDocument[V, D], draft: D) -> JsonObject | None:
    try:
        return of.version(draft.based_on).upgraded
    except NoSuchPolicy:
        return None


def _of_live(live: V, text: str, kind: str, mine: JsonObject | None, base: JsonObject | None) -> Conflict:
    return Conflict(text, kind=kind, base=base, theirs=live.upgraded, mine=mine, current=live.etag)
