"""Adding and editing a pool by form, through the fleet document and its review page."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.decorators import RoleMissing
from controlplane.audit.services import actor_of
from controlplane.fleet_ops import actions
from controlplane.fleet_pages import pool_form
from controlplane.fleet_pages.apply_views import plan_page
from controlplane.fleet_pages.views import permissions
from controlplane.permissions import can_operate
from fleet import services
from fleet.kinds import KINDS
from fleet.spec import document
from fleet.spec.fleet_spec import InvalidFleet

FIRST = "vllm"


@require_http_methods(["GET", "POST"])
def new_pool(request: HttpRequest) -> HttpResponse:
    return _form(request, "", {})


@require_http_methods(["GET", "POST"])
def edit_pool(request: HttpRequest, name: str) -> HttpResponse:
    pools = {pool["name"]: pool for pool in services.export(can_operate(request.user))["spec"]["pools"]}
    if name not in pools:
        raise Http404(f"no pool is named {name}")
    return _form(request, name, pools[name])


def _form(request: HttpRequest, name: str, pool: dict[str, Any]) -> HttpResponse:
    if request.method == "GET":
        return _page(request, name, {**pool, "kind": _chosen(request.GET.get("kind"), pool)}, {}, [])
    if not can_operate(request.user):
        raise RoleMissing("operator")
    kind = KINDS[_chosen(request.POST.get("kind"), pool)]
    typed = pool_form.typed_pool({key: request.POST.get(key, "") for key in request.POST}, kind)
    if request.POST.get("step") == "kind":  # the kind changed: keep the other fields
        return _page(request, name, typed, {}, [])
    return _plan(request, name, typed)


def _chosen(given: str | None, pool: dict[str, Any]) -> str:
    return given if given in KINDS else pool.get("kind", FIRST)


def _plan(request: HttpRequest, name: str, typed: dict[str, Any]) -> HttpResponse:
    whole, index = pool_form.with_pool(services.export(), typed, name)
    try:
        applied = actions.apply(whole, actor_of(request), dry_run=True)
    except InvalidFleet as error:
        errors, others = pool_form.errors_of(error.problems, index)
        return _page(request, name, typed, errors, others, status=422)
    return plan_page(request, applied, document.dump(whole))


def _page(
    request: HttpRequest, name: str, pool: dict[str, Any], errors: dict[str, str], others: list[Any], status: int = 200
) -> HttpResponse:
    kind = KINDS[pool["kind"]]
    common, own = pool_form.fields(pool, kind, errors)
    context = {"name": name, "kind": kind, "kinds": KINDS.values(), "common": common, "own": own, "others": others}
    context |= {"wrong": [field for field in (*common, *own) if field.error], "problem_count": len(others)}
    template = "fleet/_pool_fields.html" if request.headers.get("HX-Request") else "fleet/pool_form.html"
    return render(request, template, {**context, **permissions(request)}, status=status)
