"""When two people change a policy: base, theirs and mine of each field, and a choice that loses nobody's text."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.policies import selectors
from controlplane.policies.drafts.merge import disputes, merged, suggestion
from controlplane.policies.drafts.values import shown
from controlplane.policies.errors import Conflict
from controlplane.policies.models import Policy
from router.policy.schema import document as documents
from router.policy.schema.parameters import PARAMETERS


def page(request: HttpRequest, policy: Policy, error: Conflict, base: dict[str, Any] | None) -> HttpResponse:
    """412: what was changed under the person's hands, and the form that settles it."""
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
                "base": shown(field.base, _unit(field.path)),
                "theirs": shown(field.theirs, _unit(field.path)),
                "mine": shown(field.mine, _unit(field.path)),
                "suggested": suggestion(field),
            }
            for field in fields
        ],
        "mine": json.dumps(error.mine),
        "theirs": json.dumps(error.theirs),
        "current": draft.etag if draft else "",
        "live": selectors.live_version(policy),
        # Against the live version: the settled draft stands on it. Against another save: its base stays what it was.
        "based_on": error.current.removeprefix("v") if error.kind in ("live", "gone") else "",
        "nothing_left": not fields,
    }
    return render(request, "policies/conflict.html", context, status=412)


def _unit(path: str) -> str:
    return PARAMETERS[path].unit if path in PARAMETERS else ""


def posted_document(request: HttpRequest, key: str) -> dict[str, Any] | None:
    """A document that a form carried along; None when it is missing or was tampered with."""
    try:
        return documents.dump(documents.parse(json.loads(request.POST.get(key, ""))))
    except (ValueError, RecursionError):
        return None


def loaded(request: HttpRequest) -> dict[str, Any] | None:
    """What the person had before them when the form was made."""
    return posted_document(request, "loaded")


def chosen(request: HttpRequest) -> dict[str, Any] | None:
    """The document that the conflict page's choices make; None when the form is not whole."""
    mine, theirs = posted_document(request, "mine"), posted_document(request, "theirs")
    if mine is None or theirs is None:
        return None
    paths = [dispute.path for dispute in disputes(theirs, theirs, mine)]
    sides = {path: request.POST.get(f"choose-{path}", "") for path in paths}
    if any(side not in ("mine", "theirs") for side in sides.values()):
        return None
    return merged(theirs, mine, [path for path, side in sides.items() if side == "mine"])
