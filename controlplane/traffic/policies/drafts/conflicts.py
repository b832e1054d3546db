"""Settles conflicting changes of a policy: base, theirs and mine of each field, and the form for choosing between
them."""

import json
from collections.abc import Iterable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.people.audit.differences import differences, flatten
from controlplane.traffic.policies import selectors
from controlplane.traffic.policies.drafts.editor import named_value
from controlplane.traffic.policies.errors import Conflict, Dispute
from controlplane.traffic.policies.models import Policy
from router.contract.values.json_value import JsonObject
from router.policy.schema import document as documents
from router.policy.schema.document import upgrade_if_known
from router.policy.schema.parameters import PARAMETERS, STRATEGY_NAME


def page(request: HttpRequest, policy: Policy, error: Conflict, base: JsonObject | None) -> HttpResponse:
    """Answer 412 with the fields that another person has changed, and the form to settle them."""
    draft = selectors.open_draft(policy)
    fields = disputes(base or error.base, error.theirs, error.mine)
    context = {
        "policy": policy,
        "said": str(error),
        "fields": [
            {
                "path": field.path,
                "title": PARAMETERS[field.path].title if field.path in PARAMETERS else field.path,
                "id": field.path.replace(".", "-"),
                "base": named_value(field.path, field.base, _unit(field.path)),
                "theirs": named_value(field.path, field.theirs, _unit(field.path)),
                "mine": named_value(field.path, field.mine, _unit(field.path)),
                "suggested": suggestion(field),
            }
            for field in fields
        ],
        "mine": json.dumps(error.mine),
        "theirs": json.dumps(error.theirs),
        "current": draft.etag if draft else "",
        "live": selectors.live_version(policy),
        # After a conflict with the live version, that version becomes the draft's base; after a conflict with another
        # save, the base stays.
        "based_on": error.current.removeprefix("v") if error.kind in ("live", "gone") else "",
        "nothing_left": not fields,
    }
    return render(request, "policies/conflict.html", context, status=412)


def _unit(path: str) -> str:
    return PARAMETERS[path].unit if path in PARAMETERS else ""


def posted_document(request: HttpRequest, key: str) -> JsonObject | None:
    """Return a valid document in a hidden field; None if it is missing or was tampered with."""
    try:
        return documents.dump(documents.parse(json.loads(request.POST.get(key, ""))))
    except (ValueError, RecursionError):
        return None


def loaded(request: HttpRequest) -> JsonObject | None:
    """Return the document from which the form was made, with its values unchecked; None if it is missing or not an
    object."""
    try:
        document = json.loads(request.POST.get("loaded", ""))
    except (ValueError, RecursionError):
        return None
    return upgrade_if_known(document) if isinstance(document, dict) else None


def chosen(request: HttpRequest) -> JsonObject | None:
    """Return the document that results from the choices on the conflict page; None if a choice is missing."""
    mine, theirs = posted_document(request, "mine"), posted_document(request, "theirs")
    if mine is None or theirs is None:
        return None
    paths = [dispute.path for dispute in disputes(theirs, theirs, mine)]
    sides = {path: request.POST.get(f"choose-{path}", "") for path in paths}
    if any(side not in ("mine", "theirs") for side in sides.values()):
        return None
    return merged(theirs, mine, [path for path, side in sides.items() if side == "mine"])


def disputes(base: JsonObject, theirs: JsonObject, mine: JsonObject) -> tuple[Dispute, ...]:
    """Return every field that differs between mine and theirs, with its earlier value. Two strategies are a single
    dispute, because their parameters cannot be mixed."""
    before, differing = flatten(base), differences(theirs, mine)
    if STRATEGY_NAME.path in differing:
        differing = {
            path: pair
            for path, pair in differing.items()
            if path == STRATEGY_NAME.path or not path.startswith("strategy.")
        }
    return tuple(Dispute(path, before.get(path), their, my) for path, (their, my) in differing.items())


def merged(theirs: JsonObject, mine: JsonObject, take_mine: Iterable[str]) -> JsonObject:
    """Return theirs with the named fields taken from mine; a strategy brings its parameters along."""
    values = flatten(mine)
    taken = {path: values[path] for path in take_mine}
    if STRATEGY_NAME.path in taken:
        taken |= {path: value for path, value in values.items() if path.startswith("strategy.")}
    return documents.apply_overrides(theirs, taken)


def suggestion(dispute: Dispute) -> str:
    """Return the side that changed the field, if only one did; otherwise empty, and a person has to choose."""
    if dispute.mine == dispute.base:
        return "theirs"
    return "mine" if dispute.theirs == dispute.base else ""
