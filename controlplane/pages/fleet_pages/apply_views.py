"""Applies a fleet document: enter it, review the changes, apply exactly those."""

from dataclasses import asdict, dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.checks import check
from controlplane.pages.fleet_pages import meanwhile
from controlplane.pages.fleet_pages.lifecycle_views import reason_of
from controlplane.pages.fleet_pages.section_rows import PoolSection, section_rows
from controlplane.people.accounts.decorators import RoleMissing
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer, can_operate
from controlplane.traffic.policies.errors import RulesForbid
from fleet import services
from fleet.counted import counted
from fleet.kinds import KINDS
from fleet.kinds.options.option import options_of
from fleet.kinds.options.option_field import shown as as_typed
from fleet.services import Applied
from fleet.spec.document import UnreadableDocument
from fleet.spec.fleet_spec import InvalidFleet, PoolSpec
from fleet.spec.masking import option_shown
from router.contract.values.problem import InvalidInput, Problem

REFUSED = (UnreadableDocument, InvalidFleet, RulesForbid, InvalidInput)


@dataclass(frozen=True, slots=True)
class TypedDocument:
    document: str
    prune: bool = False
    reason: str = ""
    emergency: str = ""
    confirmed: str = ""  # removed pools, typed by the user
    opened: str = ""  # the fleet in the state that the form showed (meanwhile.mark)


@require_http_methods(["GET", "POST"])
def apply_page(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        if not can_operate(request.user):
            raise RoleMissing("operator")
        return _apply(request) if request.POST.get("step") == "apply" else _plan(request)
    text = services.export_yaml(secrets=can_operate(request.user))
    return _page(request, TypedDocument(text, opened=meanwhile.mark()))


def _typed(request: HttpRequest) -> TypedDocument:
    return TypedDocument(
        # Browsers send CR LF; otherwise the text is unchanged.
        document=request.POST.get("document", "").replace("\r\n", "\n"),
        prune=bool(request.POST.get("prune")),
        reason=reason_of(request),
        emergency=request.POST.get("emergency", "").replace("\x00", "")[:300],
        confirmed=request.POST.get("confirmed", "").replace("\x00", "")[:2_000].strip(),
        opened=request.POST.get("opened", ""),
    )


def _planned(request: HttpRequest, typed: TypedDocument) -> Applied:
    return actions.apply(typed.document, actor_of(request), dry_run=True, prune=typed.prune, emergency=typed.emergency)


def _plan(request: HttpRequest) -> HttpResponse:
    typed = _typed(request)
    try:
        applied = _planned(request, typed)
    except REFUSED as error:
        return refused_page(request, typed, error)
    return plan_page(request, applied, typed)


def plan_page(request: HttpRequest, plan: Applied, typed: TypedDocument) -> HttpResponse:
    """Show the changes, the starts, missing prerequisites, and the button that applies the document."""
    changed = {change.pool for change in plan.changes if change.kind in {"create", "update"}}
    looked = [check(pool) for pool in plan.spec.pools if pool.name in changed]
    new = {change.pool for change in plan.changes if change.kind == "create"}
    created = [created_pool(pool) for pool in plan.spec.pools if pool.name in new]
    return _page(request, typed, plan=plan, digest=services.digest(), starts=looked, created=created)


@dataclass(frozen=True, slots=True)
class CreatedPool:
    """A new pool in its review: only the values that are set, without secrets."""

    spec: PoolSpec
    options: list[tuple[str, str]]  # options of its engine
    sections: list[PoolSection]


def created_pool(pool: PoolSpec) -> CreatedPool:
    options = [(name, as_typed(option_shown(name, value))) for name, value in pool.engine.items()]
    return CreatedPool(pool, options, section_rows(pool))


def _apply(request: HttpRequest) -> HttpResponse:
    typed, digest = _typed(request), request.POST.get("digest", "")
    try:
        missing = _missing(request, typed)
        if missing:
            return _page(request, typed, status=422, plan=_planned(request, typed), digest=digest, **missing)
        return _applied(request, typed, digest)
    except REFUSED as error:
        return refused_page(request, typed, error)


def _missing(request: HttpRequest, typed: TypedDocument) -> dict[str, bool]:
    """Return the fields that the form still needs. A removed pool cannot be restored with its caches and history."""
    removed = _removed(_planned(request, typed)) if typed.prune else ""
    found = {"unreasoned": not typed.reason, "unconfirmed": typed.confirmed != removed and bool(removed)}
    return found if any(found.values()) else {}


def _removed(plan: Applied) -> str:
    return ", ".join(change.pool for change in plan.changes if change.kind == "remove")


def _applied(request: HttpRequest, typed: TypedDocument, digest: str) -> HttpResponse:
    try:
        applied = actions.apply(
            typed.document,
            actor_of(request),
            reason=typed.reason,
            prune=typed.prune,
            expected=digest,
            emergency=typed.emergency,
        )
    except services.FleetChanged:
        plan = _planned(request, typed)
        return _page(request, typed, status=412, moved=True, plan=plan, digest=services.digest())
    messages.success(
        request, f"Applied: {counted(len(applied.changes), 'change')}." if applied.drift else "No changes."
    )
    return redirect("fleet")


def refused_page(request: HttpRequest, typed: TypedDocument, error: Exception) -> HttpResponse:
    forbidden = isinstance(error, RulesForbid)
    return _page(request, typed, status=409 if forbidden else 422, problems=_problems(error), forbidden=forbidden)


def _problems(error: Exception) -> tuple[Problem, ...]:
    if isinstance(error, InvalidInput | RulesForbid):
        return error.problems
    return (Problem("", None, str(error)),)


def _page(request: HttpRequest, typed: TypedDocument, *, status: int = 200, **found: object) -> HttpResponse:
    kinds = [(kind, options_of(kind.spec)) for kind in KINDS.values()]
    plan = found.get("plan")
    removed = _removed(plan) if isinstance(plan, Applied) else ""
    others = meanwhile.since(typed.opened)
    more = {"may_emergency": can_administer(request.user), "removed": removed, "meanwhile": others, **found}
    return render(request, "fleet/apply.html", {"kinds": kinds, **asdict(typed), **more}, status=status)
