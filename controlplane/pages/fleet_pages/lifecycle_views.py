"""Actions on the page of a pool: scale, roll back, continue a change."""

from collections.abc import Callable

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect

from controlplane.common.as_seen import posted
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.rows import find_pool
from controlplane.people.accounts.decorators import operator_action
from controlplane.people.audit.services import actor_of
from controlplane.traffic.policies.errors import RulesForbid
from fleet import services
from fleet.counted import counted
from fleet.spec.fleet_spec import OBSERVE, SERVE, InvalidFleet
from fleet.spec.sections import MAX_REPLICAS


def reason_of(request: HttpRequest) -> str:
    return request.POST.get("reason", "").strip().replace("\x00", "")[:300]


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.POST.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _done(request: HttpRequest, name: str, change: Callable[[], str]) -> HttpResponse:
    find_pool(name)
    try:
        messages.success(request, change())
    except (services.NotPossible, InvalidFleet, RulesForbid) as error:
        messages.error(request, str(error))
    return redirect("fleet-pool", name=name)


@operator_action
def scale(request: HttpRequest, name: str) -> HttpResponse:
    def change() -> str:
        replicas = _number(request, "replicas")
        if replicas is None:
            raise services.NotPossible(f"replicas must be a whole number; allowed: 0 to {MAX_REPLICAS:,}")
        actions.scale(name, replicas, actor_of(request), reason_of(request), if_match=posted(request))
        return f"{name}: scaled to {counted(replicas, 'replica')}."

    return _done(request, name, change)


@operator_action
def set_mode(request: HttpRequest, name: str, mode: str) -> HttpResponse:
    if mode not in (SERVE, OBSERVE):
        raise Http404(f"no mode is named {mode}")

    def change() -> str:
        actions.set_mode(name, mode, actor_of(request), reason_of(request), if_match=posted(request))
        return f"{name}: routers take its requests." if mode == SERVE else f"{name}: observed only."

    return _done(request, name, change)


@operator_action
def roll_back(request: HttpRequest, name: str) -> HttpResponse:
    def change() -> str:
        seen, number = posted(request), _number(request, "version")
        made = actions.roll_back(name, actor_of(request), reason_of(request), number, if_match=seen)
        return f"{name}: {made.reason}, as version {made.number}."

    return _done(request, name, change)


@operator_action
def resume(request: HttpRequest, name: str) -> HttpResponse:
    def change() -> str:
        actions.resume(name, actor_of(request), reason_of(request), if_match=posted(request))
        return f"{name}: the change continues."

    return _done(request, name, change)
