"""Changes, publishes and rolls back the document Models. The database is changed first, then Redis."""

from collections.abc import Iterable

from django.db import IntegrityError, transaction

from controlplane.people.audit.services import Actor
from controlplane.traffic.aliases import check, publication, selectors
from controlplane.traffic.aliases.models import ModelsDraft, ModelsVersion
from controlplane.traffic.deliveries.going_live import rules
from controlplane.traffic.policies import versions
from controlplane.traffic.policies.acknowledged import AckWaiter, subscribed
from controlplane.traffic.policies.drafts import versioned as drafts
from controlplane.traffic.policies.drafts.services import check_reason
from controlplane.traffic.policies.drafts.versioned import DraftedDocument, Publication
from controlplane.traffic.policies.errors import NothingToPublish, stale_if_overtaken
from controlplane.traffic.policies.models import Policy
from fleet.models import Pool
from fleet.services import hold_fleet
from router.contract import models
from router.contract.models import Models
from router.contract.values.json_value import JsonObject

ModelsPublication = Publication[ModelsVersion]


def ask_the_rules(before: Models, after: Models, actor: Actor, subject: str, emergency: str) -> None:
    """Check the rules for a changed name and raise the first refusal. Call this in the transaction of the change, so
    that the rules cannot change in between."""
    rules.check_emergency(actor, emergency)
    policies = policies_of(concerned(before, after))
    versions.lock(*(policy.name for policy in policies))
    for policy in policies:
        rules.check(rules.Change(rules.Way.REDIRECT, policy, actor, emergency=emergency))
        if emergency:
            rules.record_emergency(policy, subject, actor, emergency)


def concerned(before: Models, after: Models) -> set[str]:
    """Return the pools that a changed name starts or stops using, and the pools that lose requests to it."""
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    sides = [alias for name in changed for alias in (before.get(name), after.get(name)) if alias is not None]
    own = Pool.objects.filter(ephemeral_owner="", removed=False).values_list("name", "model")
    taken = {pool for pool, model in own for name in changed if name in (pool, model)}
    return taken | {target.pool for alias in sides for target in alias.targets}


def policies_of(pools: Iterable[str]) -> list[Policy]:
    names = Pool.objects.filter(name__in=list(pools), ephemeral_owner="").values_list("policy", flat=True)
    return list(Policy.objects.filter(name__in=set(names)).order_by("name"))


def versioned() -> DraftedDocument[ModelsVersion, ModelsDraft]:
    return DraftedDocument(
        name="Models",
        subject="Models",
        word="models",
        drafts=ModelsDraft.objects.all(),
        identity={"only": True},
        live=selectors.live,
        version=lambda number: selectors.version(number) if number else selectors.before_any(),
        checked=check.checked,
    )


def open_draft(actor: Actor) -> ModelsDraft:
    return drafts.open_draft(versioned(), actor)


def save_draft(
    document: object, actor: Actor, *, if_match: str | None = None, based_on: int | None = None
) -> ModelsDraft:
    return drafts.save_draft(versioned(), document, actor, if_match=if_match, based_on=based_on)


def discard_draft(actor: Actor, *, if_match: str | None = None) -> None:
    drafts.discard_draft(versioned(), actor, if_match=if_match)


def publish(actor: Actor, reason: str, *, if_match: str | None = None, emergency: str = "") -> ModelsPublication:
    """Publish the draft. `emergency` is an administrator's reason for bypassing the rules."""
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
    """Publish the document of a file. `if_match` is the ETag of the live version that the caller saw, `based_on` the
    version from which the document was made. A dry run passes every check and is rolled back."""
    with subscribed() as waiter:
        with stale_if_overtaken(if_match), transaction.atomic():
            drafts.check_live(versioned(), if_match, check.checked(document))
            draft = drafts.draft_of_file(versioned(), document, actor, based_on)
            version = _publish(actor, reason, if_match=draft.etag, emergency=emergency)
            transaction.set_rollback(dry_run)
        if dry_run:
            return Publication(version=version, dry_run=True)
        return _tell_routers(version, waiter)


def rollback(to: int, actor: Actor, reason: str, *, if_match: str | None = None) -> ModelsPublication:
    """Publish the document of an earlier version as a new version. No rule applies, but its pools must exist."""
    reason, live, target = check_reason(reason), selectors.live(), selectors.version(to)
    drafts.check_live(versioned(), if_match, target.document)
    if target.document == live.document:
        raise NothingToPublish(f"v{to} holds the same document as {live.label}, which is live")
    with subscribed() as waiter:
        return _tell_routers(_store(live, target.document, actor, reason, rollback_of=to), waiter)


def _publish(actor: Actor, reason: str, *, if_match: str | None, emergency: str) -> ModelsVersion:
    reason, emergency = check_reason(reason), emergency.strip()
    draft, live = drafts.draft_to_publish(versioned(), if_match)
    if draft.document == live.document:
        raise NothingToPublish(f"the draft equals {live.label}, which is live: nothing to publish")
    return _store(live, draft.document, actor, reason, draft=draft, emergency=emergency)


def _store(
    live: ModelsVersion,
    document: JsonObject,
    actor: Actor,
    reason: str,
    *,
    draft: ModelsDraft | None = None,
    rollback_of: int | None = None,
    emergency: str = "",
) -> ModelsVersion:
    """Check the pools, apply the rules, claim the draft, add the version and write the audit entry. All of this is one
    transaction, so no pool can be removed in between."""
    try:
        with transaction.atomic():
            hold_fleet()
            check.check(document, live.aliases)
            if rollback_of is None:
                ask_the_rules(live.aliases, models.parse(document), actor, f"Models v{live.number + 1}", emergency)
            version = ModelsVersion.objects.create(
                number=live.number + 1,
                document=document,
                sha256=models.sha256(document),
                reason=reason,
                actor_kind=actor.kind,
                actor_name=actor.name,
                based_on=live.number or None,
                rollback_of=rollback_of,
                draft_etag=drafts.claim(versioned(), draft),
            )
            drafts.record(versioned(), version, live, actor)
    except IntegrityError:
        raise drafts.overtaken(versioned(), live, document) from None
    return version


def _tell_routers(version: ModelsVersion, waiter: AckWaiter | None) -> ModelsPublication:
    pools = sorted({target.pool for _, _, target in models.placed(version.aliases)})
    of_none = (publication.OF_NO_POOL,)
    return drafts.tell_routers(versioned(), version, waiter, publication.publish, acked=of_none, concerned=pools)
