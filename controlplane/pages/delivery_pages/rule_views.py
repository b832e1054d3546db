"""The view that sets a policy's delivery rules."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from controlplane.common.as_seen import posted
from controlplane.pages.delivery_pages import plan_form
from controlplane.people.accounts.decorators import admin_required
from controlplane.people.audit.services import actor_of
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.timing.durations import parse as seconds_of
from controlplane.traffic.policies.views import find
from router.contract.problem import InvalidInput

RULE_FIELDS: dict[str, Callable[[str], object]] = {
    "direct": str,
    "approvals_needed": plan_form.whole_of,
    "least_share": plan_form.share_of,
    "least_for_s": seconds_of,
    "least_bake_s": seconds_of,
}

RULE_TITLES = {  # titles as on the form
    "direct": "Publish at once",
    "approvals_needed": "Approvals of a delivery",
    "least_share": "Canary of at least",
    "least_for_s": "For at least",
    "least_bake_s": "Then watched for at least",
    "reason": "Reason",
}


def _read(kind: Callable[[str], object], text: str) -> object:
    """Return the typed value; text that cannot be read stays text, which no rule accepts."""
    try:
        return kind(text)
    except ValueError:
        return text


@admin_required
@require_POST
def rules(request: HttpRequest, name: str) -> HttpResponse:
    """Set who may go live without a delivery, how many approvals a plan needs, and what it must contain."""
    policy = find(name)
    typed = {key: request.POST[key].strip() for key in RULE_FIELDS if key in request.POST}
    read: dict[str, Any] = {key: _read(RULE_FIELDS[key], text) for key, text in typed.items()}
    try:
        reason, seen = request.POST.get("reason", ""), posted(request)
        services.set_rules(policy, actor_of(request), reason, if_match=seen, **read)
    except InvalidInput as error:
        for problem in error.problems:
            messages.error(request, f"Not changed: {RULE_TITLES.get(problem.path, problem.path)}: {problem.text}.")
        return redirect("policy", name=name)
    messages.success(request, "The delivery rules are changed.")
    return redirect("policy", name=name)
