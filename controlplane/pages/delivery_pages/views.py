"""Pages of deliveries: the list, one delivery, and the actions of people on it."""

import json
from dataclasses import dataclass

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from controlplane.live.dashboard.page import CONSTANTS
from controlplane.pages.delivery_pages import reading, trial
from controlplane.pages.delivery_pages.verbs import VERBS, Verb, offered, refusal, waiting_for
from controlplane.people.accounts.decorators import RoleMissing, operator_action
from controlplane.people.audit.services import actor_of
from controlplane.traffic.deliveries import selectors
from controlplane.traffic.deliveries.foresight import foresee
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.states import State, Trigger
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.selectors import policy as find_policy
from controlplane.traffic.policies.views import refusal_of
from router.contract.values.problem import InvalidInput

LISTED = 100
WHOLE = "deliveries/delivery.html"


@dataclass(frozen=True, slots=True)
class Button:
    name: str
    label: str
    effect: str
    danger: bool
    primary: bool
    allowed: bool
    refused: str


@require_GET
@never_cache
def delivery_list(request: HttpRequest) -> HttpResponse:
    context = {
        "rows": [reading.summary(each) for each in selectors.deliveries()[:LISTED]],
        "waiting": [reading.summary(each) for each in waiting_for(request.user)],
        "limit": LISTED,
        "trial": trial.offered(),
        "trial_choices": trial.CHOICES,
    }
    return render(request, "deliveries/list.html", context)


@operator_action
def try_one(request: HttpRequest) -> HttpResponse:
    """Start a trial of a good or a harmful candidate on the demo fleet."""
    offered, kind = trial.offered(), request.POST.get("candidate")
    if offered is None:
        raise Http404("there is no demo fleet to try a delivery on")
    try:
        made = trial.start(find_policy(offered.policy), "harmful" if kind == "harmful" else "good", actor_of(request))
    except (Conflict, PermissionDenied, InvalidInput) as error:
        messages.error(request, f"Not started: {error}.")
        return redirect("deliveries")
    return redirect("delivery", number=made.pk)


@require_GET
@never_cache
def delivery_page(request: HttpRequest, number: int) -> HttpResponse:
    return _page(request, selectors.delivery(number))


@require_GET
@never_cache
def delivery_live(request: HttpRequest, number: int) -> HttpResponse:
    """Show the part that refreshes, and also the buttons if the delivery has changed since the page was loaded."""
    delivery = selectors.delivery(number)
    changed = request.GET.get("etag") != delivery.etag
    return _page(request, delivery, template="deliveries/_refreshed.html", oob=changed)


@require_GET
@never_cache
def delivery_series(request: HttpRequest, number: int) -> HttpResponse:
    """Return both arms of each comparison over time."""
    return JsonResponse(reading.series(selectors.delivery(number), timezone.now()))


@dataclass(frozen=True, slots=True)
class ActionRefusal:
    """Why an action was refused."""

    said: str = ""
    reason_error: str = ""
    status: int = 200


def _has_steps_left(delivery: Delivery) -> bool:
    return delivery.is_open and delivery.state != State.BAKING


def _page(
    request: HttpRequest,
    delivery: Delivery,
    refused: ActionRefusal | None = None,
    *,
    template: str = WHOLE,
    oob: bool = False,
) -> HttpResponse:
    buttons, refused = _buttons(request, delivery), refused or ActionRefusal()
    context = {
        "delivery": delivery,
        "policy": delivery.policy,
        "number": str(delivery.pk),
        "shown": reading.shown_of(delivery, timezone.now()),
        "look": reading.latest_look(delivery),
        "charts": reading.charts(delivery),
        "settings": CONSTANTS,
        "timeline": reading.timeline(delivery),
        "approvals": list(delivery.approvals.all()),
        "changes": reading.staged_changes(delivery.base.upgraded, delivery.candidate.upgraded),
        "plan_json": json.dumps(delivery.plan, indent=2),
        "foreseen": foresee.of_delivery(delivery) if (template == WHOLE or oob) and _has_steps_left(delivery) else None,
        "refresh": f"{reverse('delivery-live', args=[delivery.pk])}?etag={delivery.etag}",
        "urgent": [button for button in buttons if VERBS[button.name].urgent],
        "verbs": [button for button in buttons if not VERBS[button.name].urgent],
        "oob": oob,
        "said": refused.said,
        "reason_error": refused.reason_error,
        "reason": request.POST.get("reason", ""),
    }
    return render(request, template, context, status=refused.status)


def _buttons(request: HttpRequest, delivery: Delivery) -> list[Button]:
    return [
        _button(request, name, verb, delivery)
        for name, verb in VERBS.items()
        if offered(name, verb, delivery) and (verb.role != "admin" or verb.permits(request.user))
    ]


def _button(request: HttpRequest, name: str, verb: Verb, delivery: Delivery) -> Button:
    permitted = verb.permits(request.user)
    why = refusal(name, delivery, actor_of(request)) if permitted else ""
    primary = verb.primary or (name == "advance" and delivery.state == "waiting")
    return Button(name, verb.label, verb.effect, verb.danger, primary, permitted and not why, why)


@require_POST
def act(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    delivery, wanted = selectors.delivery(number), VERBS.get(verb)
    if wanted is None:
        raise Http404(f"there is no action {verb[:20]}")
    if not wanted.permits(request.user):
        raise RoleMissing(wanted.role)
    reason, etag = request.POST.get("reason", ""), request.POST.get("etag") or None
    try:
        wanted.act(delivery, actor_of(request), reason, etag)
    except (Conflict, PermissionDenied) as error:
        refused = ActionRefusal(f"Not done: {error}.", status=409 if isinstance(error, Conflict) else 403)
        return _page(request, selectors.delivery(number), refused)
    except InvalidInput as error:
        found = refusal_of(error)
        return _page(request, selectors.delivery(number), ActionRefusal("; ".join(found.said), found.reason_error, 422))
    if wanted.what is Trigger.ABORT:
        messages.success(request, f"Aborted: {delivery.base.label} decides every request again.")
    return redirect("delivery", number=number)
