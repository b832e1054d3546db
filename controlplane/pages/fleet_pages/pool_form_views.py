"""Adds and edits a pool by form, through the fleet document and its review page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_pages import meanwhile, pool_form
from controlplane.pages.fleet_pages.apply_views import TypedDocument, plan_page, refused_page
from controlplane.pages.fleet_pages.memory_fit import MemoryFit, memory_fit
from controlplane.pages.fleet_pages.pool_form import PoolEntry
from controlplane.people.accounts.decorators import RoleMissing
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_operate
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import RulesForbid
from fleet import services
from fleet.kinds import KINDS
from fleet.kinds.options.option_field import OptionField
from fleet.models import Node
from fleet.spec import document
from fleet.spec.fleet_spec import InvalidFleet
from router.contract.values.fields import REQUIRED
from router.contract.values.problem import Problem

FIRST = "vllm"
# Options of any kind that nearly everyone sets: model and hardware
USUAL = {
    "model",
    "python",
    "program",
    "urls",
    "gpu",
    "gpus",
    "cores",
    "model_profile",
    "tp",
    "tensor_parallel",
    "max_model_len",
}


@require_http_methods(["GET", "POST"])
def new_pool(request: HttpRequest) -> HttpResponse:
    return _form(request, "", PoolEntry(FIRST, {}, {}))


@require_http_methods(["GET", "POST"])
def edit_pool(request: HttpRequest, name: str) -> HttpResponse:
    pools = {pool["name"]: pool for pool in services.export(can_operate(request.user))["spec"]["pools"]}
    if name not in pools:
        raise Http404(f"no pool is named {name}")
    pool = pools[name]
    return _form(request, name, PoolEntry(pool["kind"], pool, pool.get("engine", {})))


def _form(request: HttpRequest, name: str, pool: PoolEntry) -> HttpResponse:
    if request.method == "GET":
        return _page(request, name, replace(pool, kind=_chosen(request.GET.get("kind"), pool)))
    if not can_operate(request.user):
        raise RoleMissing("operator")
    typed = pool_form.typed_pool(request.POST.dict(), _chosen(request.POST.get("kind"), pool))
    if request.POST.get("step") == "kind":  # the kind was changed; the other fields are kept
        return _page(request, name, typed)
    if request.POST.get("step") == "fit":
        return render(request, "fleet/_fit.html", {"fit": _fit(typed)})
    return _plan(request, name, typed)


def _chosen(given: str | None, pool: PoolEntry) -> str:
    return given if given in KINDS else pool.kind


def _plan(request: HttpRequest, name: str, typed: PoolEntry) -> HttpResponse:
    whole, opened = services.export(), request.POST.get("opened", "")
    whole["spec"]["pools"], index = pool_form.with_pool(whole["spec"]["pools"], typed, name)
    try:
        applied = actions.apply(whole, actor_of(request), dry_run=True)
    except InvalidFleet as error:
        errors, others = pool_form.errors_of(error.problems, index)
        return _page(request, name, typed, errors, others)
    except RulesForbid as error:
        return refused_page(request, TypedDocument(document.dump(whole), opened=opened), error)
    return plan_page(request, applied, TypedDocument(document.dump(whole), opened=opened))


def _first(field: OptionField) -> bool:
    """Return whether a field is visible from the start: most people set it, or it is required, set, or wrong."""
    return field.option.name in USUAL or field.option.default is REQUIRED or bool(field.value or field.error)


def _fit(pool: PoolEntry) -> MemoryFit | None:
    node = pool.common.get("node", "" if "placement" in pool.common else "local")
    nodes = {each.name: each.resources.gpus or () for each in Node.objects.all() if node in ("", each.name)}
    return memory_fit(KINDS[pool.kind], pool.engine, str(pool.common.get("model", "")), nodes)


def _page(
    request: HttpRequest,
    name: str,
    pool: PoolEntry,
    errors: Mapping[str, str] | None = None,
    others: Sequence[Problem] = (),
) -> HttpResponse:
    known = {
        "policy": tuple(policies.policies().values_list("name", flat=True)),
        "node": tuple(Node.objects.order_by("name").values_list("name", flat=True)),
    }
    common, own = pool_form.fields(pool, errors or {}, known)
    context = {
        "name": name,
        "kind": KINDS[pool.kind],
        "kinds": KINDS.values(),
        "common": common,
        "own": [field for field in own if _first(field)],
        "more": [field for field in own if not _first(field)],
        "fit": _fit(pool),
        "others": others,
        "wrong": [field for field in (*common, *own) if field.error],
        "problem_count": len(others),
        "opened": request.POST.get("opened") or meanwhile.mark(),
    }
    template = "fleet/_pool_fields.html" if request.headers.get("HX-Request") else "fleet/pool_form.html"
    return render(request, template, context, status=422 if errors or others else 200)
