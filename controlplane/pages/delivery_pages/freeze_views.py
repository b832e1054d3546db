"""Views of freezes: the list with the next occurrences, add, remove."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.common.as_seen import posted
from controlplane.pages.delivery_pages import plan_form
from controlplane.people.accounts.decorators import RoleMissing, admin_action
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer, who_can
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.models import Freeze
from controlplane.traffic.deliveries.timing import freezes as times
from controlplane.traffic.deliveries.timing import freezing
from controlplane.traffic.deliveries.timing.durations import parse as seconds_of
from controlplane.traffic.policies.selectors import policy as find
from controlplane.traffic.policies.selectors import published_names
from router.contract.values.problem import InvalidInput, by_path
from router.contract.values.reading import read_value

NEXT = 3  # occurrences in the list
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
    """Return the entered value; text that cannot be read stays text, which every rule rejects."""
    try:
        return kind(text)
    except ValueError:
        return text


@admin_action
def rules(request: HttpRequest, name: str) -> HttpResponse:
    """Set who may go live without a delivery, how many approvals a plan needs, and its minimum contents."""
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


@dataclass(frozen=True, slots=True)
class FormField:
    name: str
    label: str
    hint: str
    type: str = "text"
    choices: tuple[tuple[str, str], ...] = ()
    value: str = ""
    error: str = ""


FIELDS = (
    FormField("name", "Name", "For example Weekends."),
    FormField("policies", "Policies", "Names with commas; empty: all."),
    FormField("start", "From", "In the time zone below; of the first one, if it repeats.", "datetime-local"),
    FormField("end", "Until", "In the time zone below; of the first one, if it repeats.", "datetime-local"),
    FormField("zone", "Time zone", "Europe/Berlin, UTC."),
    FormField("rrule", "Repeats", "As an RRULE, such as FREQ=WEEKLY;BYDAY=FR. Empty: once."),
    FormField(
        "behaviour",
        "Running deliveries",
        "Abort ends those whose candidate decides requests.",
        choices=(("hold", "are held"), ("abort", "are aborted")),
    ),
    FormField("reason", "Reason", "At least 10 characters."),
)


@dataclass(frozen=True, slots=True)
class FreezeRow:
    freeze: Freeze
    now: bool  # True if it is in force
    next: list[times.Occurrence]


@require_http_methods(["GET", "POST"])
def freezes(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _page(request, {"zone": "UTC"}, {})
    if not can_administer(request.user):
        raise RoleMissing("admin")
    typed = {field.name: request.POST.get(field.name, "")[:500].strip() for field in FIELDS}
    names = [name.strip() for name in typed["policies"].split(",") if name.strip()]
    try:
        made = freezing.add_freeze(read_value({**typed, "policies": names}, times.FreezeRule), actor_of(request))
    except InvalidInput as error:
        return _page(request, typed, {path.partition("[")[0]: text for path, text in by_path(error.problems).items()})
    messages.success(request, f"The freeze {made.name} is added.")
    return redirect("freezes")


def _page(request: HttpRequest, typed: dict[str, str], problems: dict[str, str]) -> HttpResponse:
    allowed = can_administer(request.user)
    context = {
        "rows": [_row(each) for each in Freeze.objects.filter(removed_at=None)],
        "fields": [replace(each, value=typed.get(each.name, ""), error=problems.get(each.name, "")) for each in FIELDS],
        "names": sorted(published_names()),
        "tried": bool(problems),
        "may_freeze": allowed,
        "ask": [] if allowed else who_can("admin"),
        "others": [f"{path}: {text}" for path, text in problems.items() if path not in {f.name for f in FIELDS}],
    }
    return render(request, "deliveries/freezes.html", context, status=422 if problems else 200)


def _row(freeze: Freeze) -> FreezeRow:
    now = timezone.now()
    ahead = times.occurrences(freeze.rule, now, now + times.HORIZON)
    return FreezeRow(freeze, bool(ahead) and ahead[0].start <= now, ahead[:NEXT])


@admin_action
def remove(request: HttpRequest, number: int) -> HttpResponse:
    freeze = freezing.freeze(number)
    freezing.remove_freeze(freeze, actor_of(request), if_match=posted(request))
    messages.success(request, f"The freeze {freeze.name} is removed.")
    return redirect("freezes")
