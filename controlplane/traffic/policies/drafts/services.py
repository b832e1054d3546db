"""Opens, checks, saves (also from a file) and discards the draft of a policy."""

import re
from collections.abc import Mapping
from typing import Any

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.people.audit import services as audit
from controlplane.people.audit.differences import audited_change
from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import selectors
from controlplane.traffic.policies.errors import Conflict, PolicyInvalid
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from router.contract.json_value import Json, JsonObject
from router.contract.problem import InvalidDocument, Problem
from router.policy.schema import document as documents

log = structlog.get_logger(__name__)
PATCH_ATTEMPTS = 5
REASON_MIN = 10  # characters
REASON_MAX = 500
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")
RESERVED = {"schema", "new"}  # words in the addresses of pages and API


def check_reason(reason: str, path: str = "reason") -> str:
    reason = reason.replace("\x00", "").strip()  # PostgreSQL stores no NUL.
    if not REASON_MIN <= len(reason) <= REASON_MAX:
        message = f"say why in {REASON_MIN} to {REASON_MAX} characters; this has {len(reason)}"
        raise PolicyInvalid("the reason is missing or too short", (Problem(path, reason, message),))
    return reason


def check_document(document: object) -> JsonObject:
    """Return the document with every default filled in. PolicyInvalid has every problem."""
    try:
        return documents.dump(documents.parse(document))
    except InvalidDocument as error:
        raise _refused(error) from None


def default_document(strategy: str) -> JsonObject:
    try:
        return documents.default(strategy)
    except InvalidDocument as error:
        raise _refused(error) from None


def _refused(error: InvalidDocument) -> PolicyInvalid:
    return PolicyInvalid("the policy document is not valid", tuple(error.errors))


def check_name(name: str) -> str:
    if not NAME.fullmatch(name) or name in RESERVED:
        message = "use 1–50 lower-case letters, digits or dashes, a letter or digit first"
        raise PolicyInvalid("the name is not usable", (Problem("name", name, message),))
    return name


@transaction.atomic
def open_draft(policy: Policy, actor: Actor) -> Draft:
    """Return the policy's open draft, or a new one that starts from the live version."""
    draft, created = _opened(policy, actor)
    if created:
        log.info("policy.draft_opened", policy=policy.name, based_on=draft.based_on, actor=actor.name)
        audit.record(actor, "policy.open_draft", f"policy {policy.name}", "", None, {"based_on": draft.based_on})
    return draft


def _opened(policy: Policy, actor: Actor) -> tuple[Draft, bool]:
    """Return the draft, and whether it is new."""
    live = selectors.live_version(policy)
    return Draft.objects.get_or_create(
        policy=policy,
        defaults={
            "document": live.upgraded,
            "based_on": live.number,
            "opened_by": actor.name,
            "updated_by": actor.name,
        },
    )


@transaction.atomic
def save_draft(
    policy: Policy, document: object, actor: Actor, *, if_match: str | None = None, based_on: int | None = None
) -> Draft:
    """Store a valid document as the next revision. `if_match`: the etag that the caller saw; None overwrites any.

    `based_on` rebases the draft onto another live version after a conflict was settled.
    """
    Draft.objects.filter(policy=policy).update(revision=F("revision"))  # keeps others from saving meanwhile
    before = selectors.open_draft(policy)
    draft = _saved(policy, document, actor, if_match, based_on)
    if before is not None and before.etag != draft.etag:
        was, now = audited_change(before.upgraded, draft.upgraded)
        rebased = {} if before.based_on == draft.based_on else {"based_on": draft.based_on}
        audit.record(actor, "policy.edit_draft", f"policy {policy.name}", "", was, {**now, **rebased})
    return draft


def _saved(policy: Policy, document: object, actor: Actor, if_match: str | None, based_on: int | None) -> Draft:
    document = check_document(document)
    draft = selectors.open_draft(policy)
    if draft is None:
        raise gone(policy, document)
    if document == draft.upgraded and based_on in (None, draft.based_on):
        return draft  # Sent twice, or the same change by two people.
    check_etag(draft, if_match, document)
    changes: dict[str, Any] = {
        "document": document,
        "revision": draft.revision + 1,
        "updated_by": actor.name,
        "savers": sorted({*draft.savers, actor.person}),
        "updated_at": timezone.now(),
    }
    if based_on is not None:
        changes["based_on"] = _existing(policy, based_on)
    if not Draft.objects.filter(pk=draft.pk, revision=draft.revision).update(**changes):
        raise moved(policy, document)
    draft.refresh_from_db()
    return draft


def draft_of_file(policy: Policy, document: object, actor: Actor, based_on: int | None) -> Draft:
    """Save the document of a file as the open draft, in a transaction of the caller's, so that a refusal leaves no
    draft.

    Conflict when somebody else's draft is open, or another version went live since `based_on`.
    """
    document = check_document(document)
    live, held = selectors.live_version(policy), selectors.open_draft(policy)
    if held is not None and held.upgraded not in (document, live.upgraded):
        message = f"{held.updated_by} has a draft of {policy.name} open: publish or discard it first"
        raise Conflict(message, kind="draft", theirs=held.upgraded, mine=document, current=held.etag)
    if based_on is not None and document != live.upgraded:
        _check_made_from(policy, document, live, based_on)
    _opened(policy, actor)
    return _saved(policy, document, actor, None, live.number)


def _check_made_from(policy: Policy, document: JsonObject, live: PolicyVersion, based_on: int) -> None:
    base = selectors.version(policy, based_on)
    if base.upgraded != live.upgraded:
        by = f"v{live.number} by {live.actor_name} ({live.reason})"
        raise Conflict(
            f"the file was made from v{based_on}, and {by} is live since: export it again",
            kind="live",
            base=base.upgraded,
            theirs=live.upgraded,
            mine=document,
            current=live.etag,
        )


def patch_draft(
    policy: Policy,
    overrides: Mapping[str, Json],
    actor: Actor,
    *,
    if_match: str | None = None,
    based_on: int | None = None,
) -> Draft:
    """Change fields by dotted path. Without `if_match`, fields that others save meanwhile are kept."""
    for attempt in range(PATCH_ATTEMPTS):
        draft = selectors.open_draft(policy)
        if draft is None:
            raise gone(policy, None)
        document = documents.apply_overrides(draft.upgraded, overrides)
        try:
            return save_draft(policy, document, actor, if_match=if_match or draft.etag, based_on=based_on)
        except Conflict:
            if if_match is not None or attempt == PATCH_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _existing(policy: Policy, number: int) -> int:
    if not policy.versions.filter(number=number).exists():
        message = f"policy {policy.name} has no version {number}"
        raise PolicyInvalid("the draft cannot be based on that version", (Problem("based_on", number, message),))
    return number


def discard_draft(policy: Policy, actor: Actor, *, if_match: str | None = None) -> None:
    draft = selectors.open_draft(policy)
    if draft is None:
        raise gone(policy, None)
    check_etag(draft, if_match, None)
    with transaction.atomic():
        deleted, _ = Draft.objects.filter(pk=draft.pk, revision=draft.revision).delete()
        if not deleted:
            raise moved(policy, None)
        audit.record(actor, "policy.discard_draft", f"policy {policy.name}", "", draft.upgraded, None)


def check_base(draft: Draft, live: PolicyVersion) -> None:
    """Raise Conflict if another version has gone live since the draft was opened."""
    if draft.based_on == live.number:
        return
    base = draft.policy.versions.filter(number=draft.based_on).first()
    raise Conflict(
        f"v{live.number} was published by {live.actor_name} meanwhile; this draft started from v{draft.based_on}",
        kind="live",
        base=base.upgraded if base else None,
        theirs=live.upgraded,
        mine=draft.upgraded,
        current=live.etag,
    )


def check_etag(draft: Draft, if_match: str | None, mine: JsonObject | None) -> None:
    if if_match is not None and if_match != draft.etag:
        raise moved(draft.policy, mine)


def check_live(policy: Policy, if_match: str | None, mine: JsonObject | None = None) -> None:
    """Raise Conflict unless the version that the caller saw is still live."""
    live = selectors.live_version(policy)
    if if_match is not None and if_match != live.etag:
        raise Conflict(
            f"v{live.number} was published by {live.actor_name} meanwhile",
            kind="stale",
            base=live.upgraded,
            theirs=live.upgraded,
            mine=mine,
            current=live.etag,
        )


def moved(policy: Policy, mine: JsonObject | None) -> Conflict:
    draft = selectors.open_draft(policy)
    if draft is None:
        return gone(policy, mine)
    base = policy.versions.filter(number=draft.based_on).first()
    return Conflict(
        f"The draft was saved by {draft.updated_by} meanwhile (revision {draft.revision})",
        kind="draft",
        base=base.upgraded if base else None,
        theirs=draft.upgraded,
        mine=mine,
        current=draft.etag,
    )


def gone(policy: Policy, mine: JsonObject | None) -> Conflict:
    live = selectors.live_version(policy)
    return Conflict(
        f"There is no open draft of {policy.name}; v{live.number} by {live.actor_name} is live",
        kind="gone",
        theirs=live.upgraded,
        mine=mine,
        current=live.etag,
    )
