"""Policies: the list, one policy, its versions, and rolling back."""

import difflib
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.timesince import timesince
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.people.accounts.decorators import operator_action, operator_required
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer
from controlplane.traffic.policies import publication, selectors, services, versions
from controlplane.traffic.policies.drafts.editor import named_value, pretty, sections
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.metrics import policy_metrics
from controlplane.traffic.policies.models import Direct, Policy, PolicyVersion
from controlplane.traffic.policies.publication import acknowledgement
from controlplane.traffic.policies.selectors import scope_of
from fleet.counted import counted
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput
from router.contract.values.reading import read_value
from router.policy.schema.diff import ParameterChange, diff
from router.policy.schema.parameters import PARAMETERS, STRATEGY_NAME
from router.policy.strategies import STRATEGIES

RULES_LINE = {
    Direct.ALLOWED: "operators and administrators may publish at once",
    Direct.ADMIN: "only administrators may publish at once",
    Direct.NEVER: "nobody may publish at once",
}
HISTORY = 100  # versions on the policy's page; older ones are reached by number


@dataclass(frozen=True, slots=True)
class ShownChange:
    change: ParameterChange
    old: str
    new: str
    waits: bool = False  # waits until the delivery's candidate is live


def changes(old: JsonObject, new: JsonObject) -> list[ShownChange]:
    return [
        ShownChange(
            change,
            named_value(change.path, change.old, change.unit),
            named_value(change.path, change.new, change.unit),
        )
        for change in diff(old, new)
    ]


def raw_diff(old: JsonObject, new: JsonObject, old_name: str, new_name: str) -> str:
    lines = difflib.unified_diff(pretty(old).splitlines(), pretty(new).splitlines(), old_name, new_name, lineterm="")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PublishRefusal:
    """Why nothing was published: a text for the reason's field, and one for the top of the page."""

    said: list[str]
    reason_error: str = ""


def refusal_of(error: InvalidInput) -> PublishRefusal:
    reason = [fault.text for fault in error.problems if fault.path == "reason"]
    others = [f"{named(fault.path)}: {fault.text}" for fault in error.problems if fault.path != "reason"]
    return PublishRefusal(others if reason or others else [str(error)], "; ".join(reason))


def named(path: str) -> str:
    """Return the parameter's title, as on the form."""
    return PARAMETERS[path].title if path in PARAMETERS else path


@require_GET
def policy_list(request: HttpRequest) -> HttpResponse:
    return render(request, "policies/list.html", _list_context())


def _list_context(**more: object) -> dict[str, object]:
    return {
        "rows": [publication.state_of(policy) for policy in selectors.policies()],
        "orphans": selectors.orphans(),
        "strategies": STRATEGIES.values(),
        "default_strategy": STRATEGY_NAME.default,
        **more,
    }


@operator_action
def create(request: HttpRequest) -> HttpResponse:
    typed = {key: request.POST.get(key, "") for key in ("name", "strategy", "reason")}
    try:
        document = services.default_document(typed["strategy"])
        made = services.create_policy(typed["name"], document, actor_of(request), typed["reason"])
    except InvalidInput as error:
        errors = {fault.path.partition(".")[0]: fault.text for fault in error.problems}
        context = _list_context(typed=typed, errors=errors)
        return render(request, "policies/list.html", context, status=422)
    except Conflict as error:
        context = _list_context(typed=typed, errors={"name": str(error)})
        return render(request, "policies/list.html", context, status=409)
    messages.success(request, f"Policy {typed['name']} is created: {made.summary}.")
    return redirect("policy", name=typed["name"])


@require_GET
def policy_page(request: HttpRequest, name: str) -> HttpResponse:
    policy = selectors.policy(name)
    state = publication.state_of(policy)
    live, scope = state.live, state.scope
    target = selectors.rollback_target(live)
    shown_sections = sections(live.upgraded, live.upgraded, policy_metrics(scope.pools))
    approvals = f"; a delivery needs {counted(policy.approvals_needed, 'approval')}" if policy.approvals_needed else ""
    context = {
        "policy": policy,
        "live": live,
        "previous": target.label if target else "",
        "previous_number": str(target.number) if target else "",
        "directs": Direct.choices,
        "may_rule": can_administer(request.user),
        "scope": scope,
        "strategy": state.strategy,
        "sections": shown_sections,
        "unusual": [field for section in shown_sections for field in section.fields if field.live != field.default],
        "rules_line": RULES_LINE[Direct(policy.direct)] + approvals,
        "draft": state.draft,
        "ack": state.ack,
        "history": _history(policy),
    }
    return render(request, "policies/policy.html", context)


@dataclass(slots=True)
class VersionRow:
    version: PolicyVersion
    live_for: str
    is_live: bool
    changes: list[ShownChange] = field(default_factory=list)


def _history(policy: Policy) -> list[VersionRow]:
    """Return the versions, newest first, each with its changes and how long it was live."""
    rows: list[VersionRow] = []
    end: datetime | None = None
    for version in selectors.history(policy)[: HISTORY + 1]:
        since = version.live_since
        live_for = timesince(since, end or timezone.now()) if since else ""
        rows.append(VersionRow(version, live_for, bool(since) and end is None))
        end = since or end
    older: PolicyVersion | None = None
    for row in reversed(rows):
        row.changes = changes(older.upgraded, row.version.upgraded) if older else []
        older = row.version if row.version.live_since else older
    return rows[:HISTORY]


@require_GET
def version_page(request: HttpRequest, name: str, number: int) -> HttpResponse:
    policy = selectors.policy(name)
    version, live = selectors.version(policy, number), selectors.live_version(policy)
    before = selectors.before(version)
    scope = scope_of(policy)
    ack, published = acknowledgement(policy.name, version.number, scope.pools), _just_published(request, version)
    context = {
        "policy": policy,
        "version": version,
        "live": live,
        "is_live": version.number == live.number,
        "before": before,
        "target": selectors.rollback_target(live),
        "changes": changes(before.upgraded, version.upgraded) if before else [],
        "raw": pretty(version.document),
        "scope": scope,
        "ack": ack,
        "published": published,
        "awaited": [router for router in published.missing if router not in ack.up_to_date] if published else [],
    }
    return render(request, "policies/version.html", context)


class JustPublished(msgspec.Struct, frozen=True):
    """A publication, stored in the session for the next page, which shows it once."""

    version: int  # primary key
    summary: str
    acks: list[tuple[str, str]]  # (router, ms)
    missing: list[str]
    stored_only: bool


def remember_publication(request: HttpRequest, made: services.Publication) -> None:
    acks = [(ack.router, f"{ack.ms:.0f}") for ack in made.acks]
    kept = JustPublished(made.version.pk, made.summary, acks, list(made.missing), made.stored_only)
    request.session["published"] = msgspec.to_builtins(kept)


def _just_published(request: HttpRequest, version: PolicyVersion) -> JustPublished | None:
    held = request.session.get("published")
    if held is None or held["version"] != version.pk:
        return None
    del request.session["published"]
    return read_value(held, JustPublished)


@require_GET
def compare(request: HttpRequest, name: str) -> HttpResponse:
    """Compare any two versions; without numbers, the live version and its predecessor."""
    policy = selectors.policy(name)
    live = selectors.live_version(policy)
    new = selectors.version(policy, number_of(request, "to", live.number))
    old = selectors.version(policy, number_of(request, "from", _before(new)))
    context = {
        "policy": policy,
        "old": old,
        "new": new,
        "versions": selectors.history(policy)[:HISTORY],
        "changes": changes(old.upgraded, new.upgraded),
        "raw": raw_diff(old.upgraded, new.upgraded, old.label, new.label),
    }
    return render(request, "policies/compare.html", context)


def _before(version: PolicyVersion) -> int:
    """Return the number of the version before this one; its own number if it is the first."""
    older = selectors.before(version)
    return older.number if older else version.number


def number_of(request: HttpRequest, key: str, default: int) -> int:
    text = (request.POST if request.method == "POST" else request.GET).get(key, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise Http404(f"there is no version {text[:20]}")
    return int(text)


@operator_required
@require_http_methods(["GET", "POST"])
def roll_back(request: HttpRequest, name: str) -> HttpResponse:
    """Show the changes and a default reason; a POST publishes them."""
    policy = selectors.policy(name)
    live = selectors.live_version(policy)
    offered = selectors.rollback_target(live) or live
    target = selectors.version(policy, number_of(request, "to", offered.number))
    if request.method == "GET":
        return _confirm_rollback(request, policy, live, target)
    try:
        made = services.rollback(
            policy,
            target.number,
            actor_of(request),
            request.POST.get("reason", ""),
            if_match=request.POST.get("etag") or None,
        )
    except Conflict as error:
        live = selectors.live_version(policy)
        if live.rollback_of == target.number and f"v{live.based_on}" == request.POST.get("etag"):
            return redirect("policy-version", name=name, number=live.number)  # the same button was pressed twice
        return _confirm_rollback(request, policy, live, target, PublishRefusal([str(error)]), status=412)
    except InvalidInput as error:
        return _confirm_rollback(request, policy, live, target, refusal_of(error), status=422)
    remember_publication(request, made)
    return redirect("policy-version", name=name, number=made.version.number)


def _confirm_rollback(
    request: HttpRequest,
    policy: Policy,
    live: PolicyVersion,
    target: PolicyVersion,
    refusal: PublishRefusal | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    context = {
        "policy": policy,
        "live": live,
        "target": target,
        "next": f"v{versions.next_number(policy)}",
        "changes": changes(live.upgraded, target.upgraded),
        "raw": raw_diff(live.upgraded, target.upgraded, live.label, target.label),
        "reason": request.POST.get("reason") or default_reason(live, target),
        "scope": scope_of(policy),
        "draft": selectors.open_draft(policy),
        "alone": selectors.rollback_target(live) is None,
        "refused": refusal,
    }
    return render(request, "policies/rollback.html", context, status=status)


def default_reason(live: PolicyVersion, target: PolicyVersion) -> str:
    return f"Roll back from {live.label} to {target.label} of {target.published_at:%-d %B %Y, %H:%M} UTC"
