"""Applying a fleet document: enter it, review the changes, apply exactly those."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.decorators import RoleMissing
from controlplane.audit.services import actor_of
from controlplane.fleet_ops import actions
from controlplane.fleet_ops.checks import check
from controlplane.fleet_pages.views import SECTIONS, permissions
from controlplane.permissions import can_operate
from fleet import services
from fleet.counted import counted
from fleet.kinds import KINDS
from fleet.kinds.option import options_of
from fleet.kinds.option_field import shown as as_typed
from fleet.services import Applied
from fleet.spec import document as documents
from fleet.spec.document import UnreadableDocument
from fleet.spec.fleet_spec import InvalidFleet, PoolSpec
from fleet.spec.masking import option_shown
from router.contract.problem import Problem


@require_http_methods(["GET", "POST"])
def apply_page(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        if not can_operate(request.user):
            raise RoleMissing("operator")
        return _apply(request) if request.POST.get("step") == "apply" else _plan(request)
    return _page(request, document=document_for(request))


def document_for(request: HttpRequest) -> str:
    return services.export_yaml(secrets=can_operate(request.user))


def _typed(request: HttpRequest) -> dict[str, Any]:
    return {
        # Browsers send CR LF; the text stays otherwise unchanged.
        "document": request.POST.get("document", "").replace("\r\n", "\n"),
        "prune": bool(request.POST.get("prune")),
        "reason": request.POST.get("reason", "").strip().replace("\x00", "")[:300],
    }


def _plan(request: HttpRequest) -> HttpResponse:
    typed = _typed(request)
    try:
        applied = actions.apply(typed["document"], actor_of(request), dry_run=True, prune=typed["prune"])
    except (UnreadableDocument, InvalidFleet) as error:
        return _page(request, status=422, problems=_problems(error), **typed)
    return plan_page(request, applied, **typed)


def plan_page(request: HttpRequest, plan: Applied, document: str, **typed: Any) -> HttpResponse:
    """The changes, the starts, missing prerequisites, and the button to apply."""
    changed = {change.pool for change in plan.changes if change.kind in {"create", "update"}}
    looked = [check(pool) for pool in plan.spec.pools if pool.name in changed]
    new = {change.pool for change in plan.changes if change.kind == "create"}
    created = [created_pool(pool) for pool in plan.spec.pools if pool.name in new]
    digest = services.digest()
    return _page(request, plan=plan, document=document, digest=digest, starts=looked, created=created, **typed)


def created_pool(pool: PoolSpec) -> dict[str, Any]:
    """A new pool as its review shows it: only what is set, without secrets."""
    plain = {name: getattr(pool, name) for name in ("name", "model", "kind", "replicas", "policy", "node")}
    options = [(name, as_typed(option_shown(name, value))) for name, value in pool.engine.items()]
    sections = [(name, documents.dump(value).strip()) for name in SECTIONS if (value := getattr(pool, name))]
    return {**plain, "set": [*options, *sections]}


def _apply(request: HttpRequest) -> HttpResponse:
    typed = _typed(request)
    if not typed["reason"]:
        return _unreasoned(request, typed)
    try:
        applied = actions.apply(
            typed["document"],
            actor_of(request),
            reason=typed["reason"],
            prune=typed["prune"],
            expected=request.POST.get("digest", ""),
        )
    except (UnreadableDocument, InvalidFleet) as error:
        return _page(request, status=422, problems=_problems(error), **typed)
    except services.FleetChanged:
        plan = actions.apply(typed["document"], actor_of(request), dry_run=True, prune=typed["prune"])
        return _page(request, status=412, moved=True, plan=plan, digest=services.digest(), **typed)
    messages.success(
        request, f"Applied: {counted(len(applied.changes), 'change')}." if applied.drift else "No changes."
    )
    return redirect("fleet")


def _unreasoned(request: HttpRequest, typed: dict[str, Any]) -> HttpResponse:
    try:
        plan = actions.apply(typed["document"], actor_of(request), dry_run=True, prune=typed["prune"])
    except (UnreadableDocument, InvalidFleet) as error:
        return _page(request, status=422, problems=_problems(error), **typed)
    digest = request.POST.get("digest", "")
    return _page(request, status=422, plan=plan, digest=digest, unreasoned=True, **typed)


def _problems(error: UnreadableDocument | InvalidFleet) -> tuple[Problem, ...]:
    if isinstance(error, InvalidFleet):
        return error.problems
    return (Problem("", None, str(error)),)


def _page(request: HttpRequest, *, status: int = 200, **context: Any) -> HttpResponse:
    kinds = [(kind, options_of(kind.spec)) for kind in KINDS.values()]
    return render(request, "fleet/apply.html", {"kinds": kinds, **context, **permissions(request)}, status=status)
