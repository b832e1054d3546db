"""The document of a file as the open draft."""

from controlplane.audit.services import Actor
from controlplane.policies import selectors
from controlplane.policies.drafts import services as drafts
from controlplane.policies.errors import Conflict
from controlplane.policies.models import Draft, Policy, PolicyVersion
from router.contract.json_value import JsonObject


def draft_of(policy: Policy, document: object, actor: Actor, based_on: int | None) -> Draft:
    """Conflict when somebody else's draft is open, or another version went live since `based_on`. In the caller's
    transaction, so that a refusal leaves no draft."""
    document = drafts.check_document(document)
    live, held = selectors.live_version(policy), selectors.open_draft(policy)
    if held is not None and held.upgraded not in (document, live.upgraded):
        message = f"{held.updated_by} has a draft of {policy.name} open: publish or discard it first"
        raise Conflict(message, kind="draft", theirs=held.upgraded, mine=document, current=held.etag)
    if based_on is not None and document != live.upgraded:
        _check_made_from(policy, document, live, based_on)
    drafts.open_draft(policy, actor)
    return drafts.save_draft(policy, document, actor, based_on=live.number)


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
