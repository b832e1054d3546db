"""Pages of tunings: start one, watch it, and open a draft with a winner."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.decorators import operator_required
from controlplane.audit.services import actor_of
from controlplane.permissions import can_operate, operator_controls
from controlplane.policies import selectors as policies
from controlplane.policies.errors import NoSuchPolicy, PolicyError, PolicyInvalid
from controlplane.policies.models import Policy
from controlplane.policies.views import find
from controlplane.previews import page as previews
from controlplane.tuning import display, search, selectors, services
from controlplane.tuning.models import Tuning
from controlplane.tuning.space import Range, searchable
from router.contract.problem import Problem
from router.policy.schema import document as documents
from router.policy.schema.parameter import number

NUMBERS = {
    "trials": (services.TRIALS, 1, services.MOST_TRIALS),
    "workers": (services.WORKERS, 1, services.MOST_WORKERS),
    "seed": (1, 0, 2**31 - 1),
    "max_requests": (services.MAX_REQUESTS, services.LEAST_REQUESTS, services.MOST_REQUESTS),
}


def _find(name: str, given: int) -> Tuning:
    try:
        return selectors.tuning(find(name), given)
    except NoSuchPolicy as error:
        raise Http404(str(error)) from None


@require_http_methods(["GET", "POST"])
def tunings_page(request: HttpRequest, name: str) -> HttpResponseBase:
    """The tunings of a policy; a POST starts one."""
    policy = find(name)
    if request.method == "POST":
        return _start(request, policy)
    return render(request, "tuning/list.html", _list(request, policy, {}))


@operator_required
def _start(request: HttpRequest, policy: Policy) -> HttpResponse:
    try:
        made = services.start(policy, actor_of(request), asked(request.POST))
    except PolicyInvalid as error:
        context = {**_list(request, policy, request.POST.dict()), "problems": previews.problems_of(error)}
        context["chosen"] = request.POST.getlist("parameters")
        return render(request, "tuning/list.html", context, status=422)
    return redirect("tuning", name=policy.name, number=made.pk)


def asked(form: QueryDict) -> services.Asked:
    """PolicyInvalid names every wrong number."""
    problems, numbers = [], {}
    for name, (usual, low, high) in NUMBERS.items():
        text = form.get(name, "").strip().replace(",", "") or str(usual)
        if text.isdecimal() and len(text) <= 10 and low <= int(text) <= high:
            numbers[name] = int(text)
        else:
            problems.append(
                Problem(name, text, "is not allowed", f"a whole number from {number(low)} to {number(high)}")
            )
    if problems:
        raise PolicyInvalid("the tuning was not started", tuple(problems))
    ranges = [Range(path) for path in form.getlist("parameters")]
    return services.Asked(pool=form.get("pool", ""), trace=form.get("trace", ""), parameters=ranges, **numbers)


def _list(request: HttpRequest, policy: Policy, typed: Mapping[str, str]) -> dict[str, Any]:
    live = policies.live_version(policy)
    parameters = searchable(documents.parse(live.document).strategy).values()
    return {
        "policy": policy,
        "live": live,
        "tunings": selectors.tunings(policy)[:50],
        "choices": previews.choices(policy, None, typed),
        "parameters": parameters,
        "numbers": {name: typed.get(name) or usual for name, (usual, _, _) in NUMBERS.items()},
        "missing": "" if search.is_installed() else search.MISSING,
        "cut": services.cut(100),
        **operator_controls(request.user),
    }


@require_GET
def tuning_page(request: HttpRequest, name: str, number: int) -> HttpResponse:
    return render(request, "tuning/tuning.html", _context(request, _find(name, number)))


@require_GET
def state(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """For htmx."""
    return render(request, "tuning/_state.html", _context(request, _find(name, number)))


def _context(request: HttpRequest, tuning: Tuning) -> dict[str, Any]:
    return {
        "policy": tuning.policy,
        "tuning": tuning,
        "shown": display.shown(tuning),
        "draft": policies.open_draft(tuning.policy) if can_operate(request.user) else None,
        **operator_controls(request.user),
    }


@operator_required
@require_POST
def cancel(request: HttpRequest, name: str, number: int) -> HttpResponse:
    services.cancel(_find(name, number), actor_of(request))
    return redirect("tuning", name=name, number=number)


@operator_required
@require_POST
def draft(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Open a draft with the values of the winner `trial`."""
    trial = request.POST.get("trial", "")
    try:
        services.draft_of(
            _find(name, number), int(trial) if trial.isdecimal() and len(trial) < 6 else 0, actor_of(request)
        )
    except PolicyError as error:
        messages.error(request, "; ".join(text for _, text in previews.problems_of(error)))
        return redirect("tuning", name=name, number=number)
    return redirect("draft", name=name)
