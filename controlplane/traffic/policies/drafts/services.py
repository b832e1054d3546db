"""Checks names, reasons and documents of policies; opens, changes and discards their drafts."""

import re
from collections.abc import Mapping
from functools import partial

from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import selectors
from controlplane.traffic.policies.drafts import versioned as drafts
from controlplane.traffic.policies.drafts.versioned import DraftedDocument
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from router.contract.values.json_value import Json, JsonObject
from router.contract.values.problem import InvalidInput, Problem
from router.policy.schema import document as documents

PATCH_ATTEMPTS = 5
REASON_MIN = 10  # characters
REASON_MAX = 500
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")
RESERVED = {"schema", "new"}  # words used in the addresses of pages and API


def check_reason(reason: str, path: str = "reason") -> str:
    reason = reason.replace("\x00", "").strip()  # PostgreSQL cannot store NUL
    if not REASON_MIN <= len(reason) <= REASON_MAX:
        message = f"say why in {REASON_MIN} to {REASON_MAX} characters; this has {len(reason)}"
        raise InvalidInput("the reason is missing or too short", (Problem(path, reason, message),))
    return reason


def check_document(document: object) -> JsonObject:
    """Return the document with every default filled in. InvalidInput lists every problem."""
    try:
        return documents.dump(documents.parse(document))
    except InvalidInput as error:
        raise _refused(error) from None


def default_document(strategy: str) -> JsonObject:
    try:
        return documents.default(strategy)
    except InvalidInput as error:
        raise _refused(error) from None


def _refused(error: InvalidInput) -> InvalidInput:
    return InvalidInput("the policy document is not valid", tuple(error.problems))


def check_name(name: str) -> str:
    if not NAME.fullmatch(name) or name in RESERVED:
        message = "use 1–50 lower-case letters, digits or dashes, a letter or digit first"
        raise InvalidInput("the name is not usable", (Problem("name", name, message),))
    return name


def versioned(policy: Policy) -> DraftedDocument[PolicyVersion, Draft]:
    return DraftedDocument(
        name=policy.name,
        subject=f"policy {policy.name}",
        word="policy",
        drafts=Draft.objects.filter(policy=policy).select_related("policy"),
        identity={"policy": policy},
        live=partial(selectors.live_version, policy),
        version=partial(selectors.version, policy),
        checked=check_document,
        facts={"policy": policy.name},
    )


def open_draft(policy: Policy, actor: Actor) -> Draft:
    return drafts.open_draft(versioned(policy), actor)


def save_draft(
    policy: Policy, document: object, actor: Actor, *, if_match: str | None = None, based_on: int | None = None
) -> Draft:
    return drafts.save_draft(versioned(policy), document, actor, if_match=if_match, based_on=based_on)


def patch_draft(
    policy: Policy,
    overrides: Mapping[str, Json],
    actor: Actor,
    *,
    if_match: str | None = None,
    based_on: int | None = None,
) -> Draft:
    """Change fields by dotted path. Without `if_match`, fields that others save in the meantime are kept."""
    for attempt in range(PATCH_ATTEMPTS):
        draft = selectors.open_draft(policy)
        if draft is None:
            raise drafts.gone(versioned(policy), None)
        document = documents.apply_overrides(draft.upgraded, overrides)
        try:
            return save_draft(policy, document, actor, if_match=if_match or draft.etag, based_on=based_on)
        except Conflict:
            if if_match is not None or attempt == PATCH_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def discard_draft(policy: Policy, actor: Actor, *, if_match: str | None = None) -> None:
    drafts.discard_draft(versioned(policy), actor, if_match=if_match)
