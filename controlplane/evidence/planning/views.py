"""Pages of plans: start one, watch it, and create a draft of the fleet document from a row."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods
from pydantic import ValidationError

from controlplane.common.input_errors import problems_of
from controlplane.evidence.planning import applied, display, services
from controlplane.evidence.planning.body import PlanIn
from controlplane.evidence.planning.form import PlanForm
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews import policy_job
from controlplane.evidence.traces import library
from controlplane.evidence.traces.types import BadTrace
from controlplane.people.accounts.decorators import operator_action, operator_required
from controlplane.people.audit.services import actor_of
from fleet.engine.profiles import model_names
from fleet.jobs import DONE
from router.contract.values.problem import InvalidInput, Problem


@require_http_methods(["GET", "POST"])
def plans(request: HttpRequest) -> HttpResponseBase:
    """Show the plans; a POST starts one."""
    return _start(request) if request.method == "POST" else _list(request, PlanForm())


@operator_required
def _start(request: HttpRequest) -> HttpResponse:
    try:
        made = services.start(PlanIn.model_validate(PlanForm(request.POST).body()), actor_of(request))
    except ValidationError as error:
        problems = problems_of(error)
    except BadTrace as error:
        problems = [Problem("trace", error.value, str(error))]
    except InvalidInput as error:
        problems = list(error.problems)
    else:
        return redirect("plan", number=made.pk)
    return _list(request, PlanForm(request.POST, problems), status=422)


def _list(request: HttpRequest, form: PlanForm, status: int = 200) -> HttpResponse:
    context = {
        "plans": FleetPlan.objects.all()[: services.KEPT],
        "form": form,
        "traces": library.names(),
        "models": model_names(),
    }
    return render(request, "planning/list.html", context, status=status)


@require_GET
def plan_page(request: HttpRequest, number: int) -> HttpResponse:
    return _shown(request, number, "planning/plan.html")


@require_GET
def state(request: HttpRequest, number: int) -> HttpResponse:
    """Answer htmx with the state of a plan."""
    return _shown(request, number, "planning/_state.html")


def _shown(request: HttpRequest, number: int, template: str) -> HttpResponse:
    plan = services.numbered(number)
    context = {"plan": plan, "shown": display.shown(plan, timezone.now()), "pools": services.pools(plan)}
    if plan.status == DONE:
        context["applied"] = found = applied.what_came_of(plan)
        context["compared"] = list(display.compared(found))
    return render(request, template, context)


@operator_action
def cancel(request: HttpRequest, number: int) -> HttpResponse:
    policy_job.cancel(services.numbered(number), actor_of(request))
    return redirect("plan", number=number)


@operator_required
@require_GET
def draft(request: HttpRequest, number: int) -> HttpResponse:
    """Show the fleet document in which a pool matches a row, and its difference from the current one."""
    plan, row = services.numbered(number), request.GET.get("row", "")
    try:
        document, changes = services.draft(
            plan, int(row) if row.isdecimal() and len(row) < 6 else 0, request.GET.get("pool", "")
        )
    except InvalidInput as error:
        messages.error(request, f"{error}.")
        return redirect("plan", number=number)
    context = {"plan": plan, "row": row, "document": document, "changes": changes}
    return render(request, "planning/draft.html", context)
