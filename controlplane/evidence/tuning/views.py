"""Pages of tunings: start one, watch it, and open a draft with a winner."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.evidence.previews import page as previews
from controlplane.evidence.previews.policy_job import cancel as cancel_job
from controlplane.evidence.previews.policy_job import numbered, of_policy
from controlplane.evidence.tuning import display, search, services
from controlplane.evidence.tuning.form import TuningForm
from controlplane.evidence.tuning.models import Tuning
from controlplane.people.accounts.decorators import operator_action, operator_required
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_operate
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import PolicyError
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.selectors import policy as find
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents


@require_http_methods(["GET", "POST"])
def tunings_page(request: HttpRequest, name: str) -> HttpResponseBase:
    """Show the tunings of a policy; a POST starts one."""
    policy = find(name)
    if request.method == "POST":
        return _start(request, policy)
    return _list(request, policy, _form(policy))


def _form(policy: Policy, typed: QueryDict | None = None) -> TuningForm:
    live = documents.parse(policies.live_version(policy).document)
    return TuningForm(live["strategy.name"], live, typed)


@operator_required
def _start(request: HttpRequest, policy: Policy) -> HttpResponse:
    form = _form(policy, request.POST)
    try:
        made = services.start(policy, actor_of(request), form.asked())
    except InvalidInput as error:
        form.refuse(error)
        return _list(request, policy, form, status=422)
    return redirect("tuning", name=policy.name, number=made.pk)


def _list(request: HttpRequest, policy: Policy, form: TuningForm, status: int = 200) -> HttpResponse:
    context = {
        "policy": policy,
        "live": policies.live_version(policy),
        "tunings": of_policy(Tuning, policy)[: services.KEPT],
        "choices": previews.choices(policy, None, form.chosen),
        "form": form,
        "learns": search.is_installed(),
    }
    return render(request, "tuning/list.html", context, status=status)


@require_GET
def tuning_page(request: HttpRequest, name: str, number: int) -> HttpResponse:
    return _shown(request, numbered(Tuning, name, number), "tuning/tuning.html")


@require_GET
def state(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Answer htmx with the state of a tuning."""
    return _shown(request, numbered(Tuning, name, number), "tuning/_state.html")


def _shown(request: HttpRequest, tuning: Tuning, template: str) -> HttpResponse:
    context = {
        "policy": tuning.policy,
        "tuning": tuning,
        "shown": display.shown(tuning),
        "draft": policies.open_draft(tuning.policy) if can_operate(request.user) else None,
    }
    return render(request, template, context)


@operator_action
def cancel(request: HttpRequest, name: str, number: int) -> HttpResponse:
    cancel_job(numbered(Tuning, name, number), actor_of(request))
    return redirect("tuning", name=name, number=number)


@operator_action
def resume(request: HttpRequest, name: str, number: int) -> HttpResponse:
    services.resume(numbered(Tuning, name, number), actor_of(request))
    return redirect("tuning", name=name, number=number)


@operator_action
def draft(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Open a draft with the values of the winner `trial`."""
    tuning, trial = numbered(Tuning, name, number), request.POST.get("trial", "")
    try:
        services.draft_of(tuning, int(trial) if trial.isdecimal() and len(trial) < 6 else 0, actor_of(request))
    except (PolicyError, InvalidInput) as error:
        messages.error(request, "; ".join(text for _, text in previews.problems_of(error)))
        return redirect("tuning", name=name, number=number)
    return redirect("draft", name=name)
