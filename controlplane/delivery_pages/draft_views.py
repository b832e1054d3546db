"""Delivering a draft, and the rules of a policy for it."""

import json
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.decorators import admin_required, operator_required
from controlplane.audit.services import actor_of
from controlplane.deliveries import plan as plans
from controlplane.deliveries import selectors, services
from controlplane.deliveries.plan import CLASSES, POOL_METRICS
from controlplane.deliveries.states import State
from controlplane.delivery_pages import plan_form, reading
from controlplane.delivery_pages.display.sentences import WORDS
from controlplane.delivery_pages.display.steps import SHOWS
from controlplane.policies import selectors as policies
from controlplane.policies.drafts import conflicts
from controlplane.policies.drafts.views import review_context
from controlplane.policies.errors import Conflict, PolicyInvalid
from controlplane.policies.models import Draft, Policy
from controlplane.policies.selectors import scope_of
from controlplane.policies.views import find, problems_for_page
from controlplane.previews import selectors as previews
from router.contract.problem import Problem
from router.policy.schema import document as documents

CHOSEN = ("pools", "ttft.classes", "tpot.classes", "slow.classes")  # fields with several values
JSON_MAX = 20_000  # characters
DOES = ("pause", "abort")


@operator_required
@require_http_methods(["GET", "POST"])
def deliver(request: HttpRequest, name: str) -> HttpResponse:
    """GET shows a plan that is filled in; POST proposes it."""
    policy = find(name)
    draft = policies.open_draft(policy)
    if draft is None:
        messages.info(request, f"Policy {name} has no open draft.")
        return redirect("policy", name=name)
    if request.method == "GET":
        return render(request, "deliveries/deliver.html", _context(request, draft, default_plan(policy, draft)))
    return _propose(request, policy, draft)


def default_plan(policy: Policy, draft: Draft) -> dict[str, Any]:
    """With every default filled in; the classes as the draft's latest preview saw them."""
    preview = previews.latest_of(draft)
    pools = scope_of(policy).pools
    made = plans.default_plan(pools, policy.approvals_needed, preview.result if preview else None)
    return plans.as_dict(plans.parse(made, pools=pools, approvals_needed=policy.approvals_needed))


def _propose(request: HttpRequest, policy: Policy, draft: Draft) -> HttpResponse:
    try:
        base = _json(request.POST.get("base", "")) or default_plan(policy, draft)
    except ValueError:
        base = default_plan(policy, draft)
    typed, said = _typed(request, base)
    if said:
        return _again(request, draft, base, typed, {"said": [said]}, 422)
    try:
        made = services.propose(
            policy,
            typed.plan,
            actor_of(request),
            request.POST.get("reason", ""),
            if_match=request.POST.get("etag") or None,
            again=request.POST.get("again", ""),
        )
    except Conflict as error:
        return _conflict(request, draft, base, typed, error)
    except PermissionDenied as error:
        return _again(request, draft, base, typed, {"said": [f"{error}."]}, 403)
    except PolicyInvalid as error:
        return _again(request, draft, base, typed, _problems(typed, _with_plan(policy, typed, error)), 422)
    word, _ = WORDS[State(made.state)]
    messages.success(request, f"{made.candidate.label} is proposed: {word}.")
    return redirect("delivery", number=made.pk)


def _typed(request: HttpRequest, base: dict[str, Any]) -> tuple[plan_form.Typed, str]:
    """The plan that was typed, and what is wrong with it as a whole."""
    if not request.POST.get("use_json"):
        chosen = {name: request.POST.getlist(name) for name in CHOSEN}
        return plan_form.typed(request.POST.dict(), chosen, base), ""
    try:
        return plan_form.Typed(plan=_json(request.POST.get("json", ""))), ""
    except ValueError as error:
        return plan_form.Typed(plan=base), f"The plan cannot be read as JSON: {error}"


def _json(text: str) -> dict[str, Any]:
    if len(text) > JSON_MAX:
        raise ValueError(f"longer than {JSON_MAX:,} characters")
    found = json.loads(text) if text.strip() else {}
    if not isinstance(found, dict):
        raise ValueError("must be an object")
    return found


def _conflict(
    request: HttpRequest, draft: Draft, base: dict[str, Any], typed: plan_form.Typed, error: Conflict
) -> HttpResponse:
    done = policies.published_from(draft.policy, request.POST.get("etag", ""))
    if done is not None and (held := selectors.deliveries(draft.policy).filter(candidate=done).first()):
        return redirect("delivery", number=held.pk)  # the second press of the same button
    if error.kind == "live" and error.base is not None:
        return conflicts.page(request, draft.policy, error, error.base)
    return _again(request, draft, base, typed, {"said": [f"{error}."]}, 409)


def _with_plan(policy: Policy, typed: plan_form.Typed, error: PolicyInvalid) -> PolicyInvalid:
    """A reason that is refused comes with the problems of the plan, which are looked for after it."""
    try:
        services.check_plan(policy, typed.plan, timezone.now())
    except PolicyInvalid as of_plan:
        rest = (each for each in error.errors if each not in of_plan.errors)
        return PolicyInvalid(str(error), (*rest, *of_plan.errors))
    return error


def _problems(typed: plan_form.Typed, error: PolicyInvalid) -> dict[str, Any]:
    of_plan = tuple(
        Problem(each.path.removeprefix("plan").removeprefix("."), each.value, each.message, each.allowed)
        for each in error.errors
        if each.path.partition(".")[0] == "plan"
    )
    errors, others = plan_form.by_field(typed, of_plan)
    rest = PolicyInvalid(str(error), tuple(each for each in error.errors if each.path.partition(".")[0] != "plan"))
    again = "; ".join(each.text for each in rest.errors if each.path == "again")
    page = problems_for_page(PolicyInvalid(str(error), tuple(e for e in rest.errors if e.path != "again")))
    said = [] if of_plan or again else page["said"]
    return {
        "errors": errors,
        "others": others,
        "again_error": again,
        "reason_error": page["reason_error"],
        "said": said,
    }


def _again(
    request: HttpRequest,
    draft: Draft,
    base: dict[str, Any],
    typed: plan_form.Typed,
    problems: dict[str, Any],
    status: int,
) -> HttpResponse:
    """The form as it was sent, with what is wrong at its fields."""
    sent = {**request.POST.dict(), **{name: request.POST.getlist(name) for name in CHOSEN}}
    context = _context(request, draft, base, sent)
    context |= {"json": request.POST.get("json", ""), "use_json": bool(request.POST.get("use_json")), **problems}
    context["etag"] = request.POST.get("etag", "")
    context["error_links"] = [
        (name.replace(".", "-"), f"{plan_form.label_of(name)}: {text}") for name, text in context["errors"].items()
    ]
    return render(request, "deliveries/deliver.html", context, status=status)


def _context(
    request: HttpRequest, draft: Draft, base: dict[str, Any], sent: dict[str, Any] | None = None
) -> dict[str, Any]:
    policy = draft.policy
    shown = plan_form.values(base)
    values = sent if sent is not None else None if shown is None else {**plan_form.defaults(), **shown}
    return {
        **review_context(request, draft),
        "changes": reading.staged_changes(policies.live_version(policy).upgraded, draft.upgraded),
        "values": values,
        "errors": {},
        "etag": draft.etag,
        "base": json.dumps(base),
        "json": json.dumps(base, indent=2),
        "use_json": shown is None,
        "shows": SHOWS,
        "canaries": [_canary(number, values or {}) for number in range(1, plan_form.CANARIES + 1)],
        "pools": scope_of(policy).pools,
        "pool_metrics": list(POOL_METRICS.items()),
        "classes": CLASSES,
        "does": DOES,
        "pool": {key: (values or {}).get(f"pool.{key}", "") for key in ("metric", "class", "does")},
        "start": {"at": (values or {}).get("start.at", "")},
        "rules_text": f"The policy asks for {policy.approvals_needed}." if policy.approvals_needed else "",
        "asks_again": selectors.failed_before(policy, draft_sha256(draft)) is not None,
        "again": request.POST.get("again", ""),
    }


def _canary(number: int, values: dict[str, Any]) -> dict[str, Any]:
    fields = {key: f"canary{number}.{key}" for key in ("share", "for", "max", "ask")}
    return {"number": str(number), **fields, "asks": bool(values.get(fields["ask"]))}


def draft_sha256(draft: Draft) -> str:
    return documents.sha256(documents.dump(documents.parse(draft.upgraded)))


@admin_required
@require_POST
def rules(request: HttpRequest, name: str) -> HttpResponse:
    """Whether the policy may be published without a delivery, and how many approvals a plan must ask for."""
    policy = find(name)
    needed = request.POST.get("approvals_needed", "").strip()
    try:
        services.set_rules(
            policy,
            actor_of(request),
            request.POST.get("reason", ""),
            direct=request.POST.get("direct", ""),
            approvals_needed=int(needed) if needed.isdecimal() and len(needed) < 4 else -1,
        )
    except PolicyInvalid as error:
        for problem in error.errors:
            messages.error(request, f"Not changed: {problem.path}: {problem.text}.")
        return redirect("policy", name=name)
    messages.success(request, "The delivery rules are changed.")
    return redirect("policy", name=name)
