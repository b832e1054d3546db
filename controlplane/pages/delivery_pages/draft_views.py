"""Views for proposing a draft as a delivery and for setting a policy's delivery rules."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods
from msgspec import Struct

from controlplane.evidence.previews import selectors as previews
from controlplane.pages.delivery_pages import plan_form, presets, reading, trial
from controlplane.pages.delivery_pages.display import steps
from controlplane.pages.delivery_pages.display.sentences import WORDS
from controlplane.pages.delivery_pages.display.steps import SHOWS
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from controlplane.traffic.deliveries import selectors, services
from controlplane.traffic.deliveries.foresight import foresee
from controlplane.traffic.deliveries.plan.default import default_plan
from controlplane.traffic.deliveries.plan.types import CLASSES, POOL_METRICS, Plan
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.deliveries.timing.durations import words
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts import conflicts
from controlplane.traffic.policies.drafts.views import review_context
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Direct, Draft, Policy
from controlplane.traffic.policies.selectors import policy as find
from controlplane.traffic.policies.selectors import scope_of
from controlplane.traffic.policies.views import refusal_of
from router.contract.values.problem import InvalidInput, Problem
from router.contract.values.reading import read_value

CHOSEN = ("pools", "ttft.classes", "tpot.classes", "slow.classes")  # fields with several values
JSON_MAX = 20_000  # characters
OFFERED = {  # choices that the form offers
    "shows": SHOWS,
    "pool_metrics": list(POOL_METRICS.items()),
    "classes": CLASSES,
    "does": ("pause", "abort"),
    "sides": ("above", "below"),
}
TYPED = {"pool": ("metric", "class", "does"), "prometheus": ("fail_if", "does"), "start": ("at",)}  # fields by section


@operator_required
@require_http_methods(["GET", "POST"])
def deliver(request: HttpRequest, name: str) -> HttpResponse:
    """Show a form with a default plan; a POST proposes the delivery."""
    policy = find(name)
    draft = policies.open_draft(policy)
    if draft is None:
        messages.info(request, f"Policy {name} has no open draft.")
        return redirect("policy", name=name)
    return _propose(request, policy, draft) if request.method == "POST" else _page(request, draft)


def plan_for(policy: Policy, draft: Draft) -> Plan:
    """Return the default plan, based on the class shares in the draft's latest preview."""
    preview = previews.latest_of(draft)
    shares = class_shares(preview.result) if preview and preview.result else {}
    return default_plan(scope_of(policy).pools, policy.approvals_needed, shares)


class _Classified(Struct):
    of: int = 0


class _Changed(Struct):
    of: int = 0
    classes: dict[str, _Classified] = {}


class _Previewed(Struct):
    """The part of a preview's result that a plan needs."""

    changed: _Changed | None = None


def class_shares(result: object) -> dict[str, float]:
    """Return the class shares of the previewed requests; empty without a preview."""
    changed = read_value(result, _Previewed).changed
    if changed is None or not changed.of:
        return {}
    return {name: counted.of / changed.of for name, counted in changed.classes.items()}


@dataclass(frozen=True, slots=True)
class FormProblems:
    """The problems of the form."""

    said: Sequence[str] = ()  # sentences at the top
    errors: Mapping[str, str] = field(default_factory=dict)  # errors by field
    others: Sequence[str] = ()  # problems of the plan without a field
    again_error: str = ""
    reason_error: str = ""


def _propose(request: HttpRequest, policy: Policy, draft: Draft) -> HttpResponse:
    try:
        typed = _typed(request)
    except ValueError as error:
        return _page(request, draft, FormProblems([f"The plan cannot be read as JSON: {error}"]), 422)
    if request.POST.get("foresee"):
        return _foreseen(request, draft, typed)
    try:
        made = services.propose(
            policy,
            typed.plan,
            actor_of(request),
            request.POST.get("reason", ""),
            if_match=request.POST.get("etag") or None,
            again=request.POST.get("again", ""),
            emergency=request.POST.get("emergency", ""),
        )
    except Conflict as error:
        return _conflict(request, draft, error)
    except PermissionDenied as error:
        return _page(request, draft, FormProblems([f"{error}."]), 403)
    except InvalidInput as error:
        return _page(request, draft, _problems(typed, _with_plan(policy, typed, error)), 422)
    _tell(request, services.begin(made, actor_of(request)))
    return redirect("delivery", number=made.pk)


def _tell(request: HttpRequest, begun: services.ProposedDelivery) -> None:
    label, (word, _) = begun.delivery.candidate.label, WORDS[State(begun.delivery.state)]
    if begun.refusal:
        messages.warning(request, f"{label} is proposed and has not started: {begun.refusal}.")
    else:
        messages.success(request, f"{label} is proposed: {word}.")


def _foreseen(request: HttpRequest, draft: Draft, typed: plan_form.PostedPlan) -> HttpResponse:
    """Show the posted form with the foresight for its plan, without proposing the plan."""
    try:
        plan = services.check_plan(draft.policy, typed.plan, timezone.now())
    except InvalidInput as error:
        return _page(request, draft, _problems(typed, error), 422)
    return _page(request, draft, plan=plan)


def _typed(request: HttpRequest) -> plan_form.PostedPlan:
    """Return the posted plan, from the fields or as JSON. Raise ValueError if the JSON cannot be read."""
    if not request.POST.get("use_json"):
        return plan_form.typed(request.POST.dict(), {name: request.POST.getlist(name) for name in CHOSEN})
    text = request.POST.get("json", "")
    if len(text) > JSON_MAX:
        raise ValueError(f"longer than {JSON_MAX:,} characters")
    plan = json.loads(text) if text.strip() else {}
    if not isinstance(plan, dict):
        raise ValueError("must be an object")
    return plan_form.PostedPlan(plan=plan)


def _conflict(request: HttpRequest, draft: Draft, error: Conflict) -> HttpResponse:
    done = policies.published_from(draft.policy, request.POST.get("etag", ""))
    if done is not None and (held := selectors.deliveries(draft.policy).filter(candidate=done).first()):
        return redirect("delivery", number=held.pk)  # the same button was pressed twice
    if error.kind == "live" and error.base is not None:
        return conflicts.page(request, draft.policy, error, error.base)
    return _page(request, draft, FormProblems([f"{error}."]), 409)


def _with_plan(policy: Policy, typed: plan_form.PostedPlan, error: InvalidInput) -> InvalidInput:
    """Return the error with the plan's problems added, because `propose` checks the reason first and stops if it is
    missing."""
    try:
        services.check_plan(policy, typed.plan, timezone.now())
    except InvalidInput as of_plan:
        rest = (each for each in error.problems if each not in of_plan.problems)
        return InvalidInput(str(error), (*rest, *of_plan.problems))
    return error


def _problems(typed: plan_form.PostedPlan, error: InvalidInput) -> FormProblems:
    of_plan = tuple(
        Problem(each.path.removeprefix("plan").removeprefix("."), each.value, each.message, each.allowed)
        for each in error.problems
        if _is_of_plan(each)
    )
    errors, others = plan_form.by_field(typed, of_plan)
    again = "; ".join(each.text for each in error.problems if each.path == "again")
    rest = tuple(each for each in error.problems if not _is_of_plan(each) and each.path != "again")
    page = refusal_of(InvalidInput(str(error), rest))
    return FormProblems([] if of_plan or again else page.said, errors, others, again, page.reason_error)


def _is_of_plan(problem: Problem) -> bool:
    return problem.path.partition(".")[0] == "plan"


def _error_links(errors: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name.replace(".", "-"), f"{plan_form.label_of(name)}: {text}") for name, text in errors.items()]


def _page(
    request: HttpRequest,
    draft: Draft,
    wrong: FormProblems | None = None,
    status: int = 200,
    plan: Plan | None = None,
) -> HttpResponse:
    """Show the initial form, or the posted form with errors beside its fields. `plan` is the posted plan."""
    policy, sent, wrong = draft.policy, request.POST, wrong or FormProblems()
    cards = [*presets.presets(plan_for(policy, draft), trial.short_plan(policy))]
    preset = presets.chosen(cards, request.GET.get("plan", ""))
    values: plan_form.Values = {**plan_form.defaults(), **plan_form.values(preset.plan)}
    shown = plan if request.method == "POST" else preset.plan
    if request.method == "POST":
        values = {**sent.dict(), **{name: sent.getlist(name) for name in CHOSEN}}
    context = {
        **review_context(request, draft),
        "changes": reading.staged_changes(policies.live_version(policy).upgraded, draft.upgraded),
        "values": values,
        "foreseen": foresee.foresee(policy, shown) if shown else None,
        "in_words": shown and steps.in_words(shown),
        **asdict(wrong),
        "error_links": _error_links(wrong.errors),
        "etag": sent.get("etag", "") if request.method == "POST" else draft.etag,
        "json": sent.get("json", "") if request.method == "POST" else json.dumps(preset.plan.canonical, indent=2),
        "use_json": bool(sent.get("use_json")),
        "presets": cards,
        "preset": preset.key,
        "numbers": plan_form.step_numbers(values),
        "canaries": [_canary(number, values) for number in range(1, plan_form.CANARIES + 1)],
        "pools": scope_of(policy).pools,
        **OFFERED,
        **{of: {key: values.get(f"{of}.{key}", "") for key in keys} for of, keys in TYPED.items()},
        "asks_prometheus": bool(settings.PROMETHEUS_URL),
        "starts_at_once": _starts_at_once(policy, values),
        "rules_text": rules_text(policy),
        "asks_again": selectors.failed_before(policy, draft.upgraded) is not None,
        "again": sent.get("again", ""),
    }
    return render(request, "deliveries/deliver.html", context, status=status)


def _starts_at_once(policy: Policy, values: plan_form.Values) -> bool:
    """Return whether *Deliver* would also start the delivery, as far as the form shows."""
    if values.get("approvals") not in (None, "", "0") or policy.approvals_needed:
        return False
    return not values.get("start.at") and selectors.freeze_in_force(policy, timezone.now()) is None


def rules_text(policy: Policy) -> str:
    """Describe the policy's requirements for a plan; empty if there are none."""
    asked = [f"{policy.approvals_needed} approvals"] if policy.approvals_needed else []
    if policy.direct != Direct.ALLOWED:
        least = policy.least_plan
        share, for_s, bake = plan_form.percent(least.share), words(least.for_s), words(least.bake_s)
        who = "" if policy.direct == Direct.NEVER else " of operators"
        asked.append(f"a canary of at least {share} % for {for_s}, then watched for {bake}{who}")
    return f"The policy asks for {', and for '.join(asked)}." if asked else ""


class CanaryFields(NamedTuple):
    number: str
    share: str
    at_least: str
    at_most: str
    ask: str
    asks: bool
    step: int | None  # number in the plan


def _canary(number: int, values: plan_form.Values) -> CanaryFields:
    share, at_least, at_most, ask = (f"canary{number}.{key}" for key in ("share", "for", "max", "ask"))
    step = plan_form.step_numbers(values).get(f"canary{number}")
    return CanaryFields(str(number), share, at_least, at_most, ask, bool(values.get(ask)), step)
