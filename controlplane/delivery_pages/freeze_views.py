"""Freezes: the list with its next times, add, remove."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.decorators import RoleMissing, admin_required
from controlplane.audit.services import actor_of
from controlplane.deliveries import selectors
from controlplane.deliveries.models import Freeze
from controlplane.deliveries.timing import freezes as times
from controlplane.deliveries.timing import freezing
from controlplane.permissions import can_administer, who_can
from controlplane.policies.errors import NoSuchPolicy, PolicyInvalid
from controlplane.policies.selectors import published_names
from router.contract.problem import by_path

NEXT = 3  # occurrences in the list
FIELDS: tuple[dict[str, Any], ...] = (
    {"name": "name", "label": "Name", "type": "text", "hint": "For example Weekends."},
    {"name": "policies", "label": "Policies", "type": "text", "hint": "Names with commas; empty: all."},
    {"name": "start", "label": "From", "type": "datetime-local", "hint": "Local time of the first one."},
    {"name": "end", "label": "Until", "type": "datetime-local", "hint": "Local time of the first one."},
    {"name": "zone", "label": "Time zone", "type": "text", "hint": "Europe/Berlin, UTC."},
    {"name": "rrule", "label": "Repeats", "type": "text",
     "hint": "As an RRULE, such as FREQ=WEEKLY;BYDAY=FR. Empty: once."},
    {"name": "behaviour", "label": "Running deliveries", "choices": (("hold", "are held"), ("abort", "are aborted")),
     "hint": "Abort ends those whose candidate decides requests."},
    {"name": "reason", "label": "Reason", "type": "text", "hint": "At least 10 characters."},
)  # fmt: skip


@require_http_methods(["GET", "POST"])
def freezes(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return render(request, "deliveries/freezes.html", _context(request, {"zone": "UTC"}, {}))
    if not can_administer(request.user):
        raise RoleMissing("admin")
    typed = {field["name"]: request.POST.get(field["name"], "")[:500].strip() for field in FIELDS}
    names = [name.strip() for name in typed["policies"].split(",") if name.strip()]
    try:
        made = freezing.add_freeze({**typed, "policies": names}, actor_of(request))
    except PolicyInvalid as error:
        problems = {path.partition("[")[0]: text for path, text in by_path(error.errors).items()}
        return render(request, "deliveries/freezes.html", _context(request, typed, problems), status=422)
    messages.success(request, f"The freeze {made.name} is added.")
    return redirect("freezes")


def _context(request: HttpRequest, typed: dict[str, str], problems: dict[str, str]) -> dict[str, Any]:
    allowed = can_administer(request.user)
    fields = [
        {**field, "value": typed.get(field["name"], ""), "error": problems.get(field["name"], "")} for field in FIELDS
    ]
    return {
        "rows": [_row(each) for each in Freeze.objects.filter(removed_at=None)],
        "fields": fields,
        "names": sorted(published_names()),
        "may_freeze": allowed,
        "ask": [] if allowed else who_can("admin"),
        "others": [f"{path}: {text}" for path, text in problems.items() if path not in {f["name"] for f in FIELDS}],
    }


def _row(freeze: Freeze) -> dict[str, Any]:
    now = timezone.now()
    found = times.occurrences(selectors.rule_of(freeze), now, now + times.HORIZON)
    return {"freeze": freeze, "now": bool(found) and found[0].start <= now, "next": found[:NEXT]}


@admin_required
@require_POST
def remove(request: HttpRequest, number: int) -> HttpResponse:
    try:
        found = freezing.freeze(number)
    except NoSuchPolicy as error:
        raise Http404(str(error)) from None
    freezing.remove_freeze(found, actor_of(request))
    messages.success(request, f"The freeze {found.name} is removed.")
    return redirect("freezes")
