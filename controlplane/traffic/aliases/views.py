"""The page Models: names, adapters and versions; the draft, its review, and rolling back."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.people.accounts.decorators import operator_action, operator_required
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer
from controlplane.traffic.aliases import check, form, homes, publication, selectors, services
from controlplane.traffic.aliases.models import ModelsVersion
from controlplane.traffic.aliases.words import AliasChange, ShownTarget, changes, conditions, shares
from controlplane.traffic.policies.errors import Conflict, NothingToPublish
from controlplane.traffic.policies.selectors import Scope
from controlplane.traffic.policies.views import PublishRefusal, number_of, raw_diff, refusal_of
from fleet.kinds import KINDS
from fleet.models import Pool
from fleet.selectors import pool_ready
from fleet.spec import document as texts
from fleet.spec.fleet_spec import SERVE
from router.contract import models
from router.contract.models import Alias, Models
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, by_path

HISTORY = 50  # versions on the page
EVERY_ROUTER = Scope(("every pool",), 0)


def pool_names() -> list[str]:
    return list(Pool.objects.filter(ephemeral_owner="", removed=False).order_by("name").values_list("name", flat=True))


def _names(found: Models) -> list[tuple[str, Alias, list[ShownTarget], str]]:
    return [(name, found[name], shares(found[name]), conditions(found[name])) for name in sorted(found)]


class NamedPool(NamedTuple):
    """A pool that serves its model's name, or only its own name if another pool serves the model's."""

    asked: str  # the name in requests
    model: str
    first: str  # the pool that serves the model's name
    pool: str
    engine: str
    policy: str
    ready: int
    wanted: int


def _served() -> list[NamedPool]:
    rows = (
        Pool.objects.filter(ephemeral_owner="", removed=False, mode=SERVE).exclude(model="").order_by("model", "name")
    )
    first: dict[str, str] = {}  # as in routers: the pool of that name, or else the first by name
    for row in rows:
        first.setdefault(row.model, row.name)
    served = Pool.objects.filter(ephemeral_owner="", removed=False, name__in=first)
    first |= {row.name: row.name for row in served if row.kind not in KINDS or KINDS[row.kind].serves}
    return [
        NamedPool(
            row.model if first[row.model] == row.name else row.name,
            row.model,
            first[row.model],
            row.name,
            KINDS[row.kind].title,
            row.policy,
            *pool_ready(row.name),
        )
        for row in rows
        if row.kind in KINDS
    ]


@require_GET
def page(request: HttpRequest) -> HttpResponse:
    live, target = selectors.live(), selectors.rollback_target()
    context = {
        "live": live,
        "names": _names(live.aliases),
        "served": _served(),
        "adapters": homes.adapters(),
        "draft": selectors.open_draft(),
        "ack": publication.acknowledgement(),
        "scope": EVERY_ROUTER,
        "target": target,
        "history": _history(),
    }
    return render(request, "models/models.html", context)


def _history() -> list[tuple[ModelsVersion, list[AliasChange]]]:
    rows = [*selectors.history()[: HISTORY + 1]]
    older = [*(models.parse(row.document) for row in rows[1:]), {}][: len(rows)]
    return [(row, changes(old, models.parse(row.document))) for row, old in zip(rows, older, strict=True)][:HISTORY]


@require_GET
def version_page(request: HttpRequest, number: int) -> HttpResponse:
    version = selectors.version(number)
    before = selectors.history().filter(number__lt=number).first()
    old = models.parse(before.document) if before is not None else {}
    context = {
        "version": version,
        "live": selectors.live(),
        "changes": changes(old, models.parse(version.document)),
        "text": texts.dump(version.document),
        "ack": publication.acknowledgement(),
        "scope": EVERY_ROUTER,
    }
    return render(request, "models/version.html", context)


# The draft


@operator_action
def open_draft(request: HttpRequest) -> HttpResponse:
    services.open_draft(actor_of(request))
    return redirect("models-draft")


@operator_required
@require_http_methods(["GET", "POST"])
def draft(request: HttpRequest) -> HttpResponse:
    """Show the names of the draft; a POST removes one, replaces the document, or rebases the draft on the live
    version."""
    if request.method == "GET":
        return _draft_page(request)
    held = selectors.open_draft()
    if held is None:
        return _ended(request)
    try:
        _save(request, _changed(request, held.document), based_on=_rebase(request))
    except texts.UnreadableDocument as error:
        return _draft_page(request, said=[str(error)], status=422)
    except InvalidInput as error:
        return _draft_page(request, said=[f"{one.path}: {one.text}" for one in error.problems], status=422)
    except Conflict as error:
        return _overtaken(request, error)
    return redirect("models-draft")


def _overtaken(request: HttpRequest, error: Conflict) -> HttpResponse:
    """Show how the entered document differs from the one saved by another person."""
    over = changes(models.parse(error.theirs), models.parse(error.mine)) if "document" in request.POST else []
    return _draft_page(request, said=[f"{error}. Nothing was saved: look at what is there now."], over=over, status=412)


def _ended(request: HttpRequest) -> HttpResponse:
    """Keep a document that was entered for a draft which someone else has published or discarded, in a new draft."""
    if "document" not in request.POST:
        return _no_draft(request)
    return _draft_page(request, said=[_anew(request)], status=412)


def _anew(request: HttpRequest) -> str:
    """Open a draft in place of the one that has ended, and report the replacement."""
    live = selectors.live()
    services.open_draft(actor_of(request))
    by = f"{live.label} by {live.actor_name}" if live.number else "no version"
    return f"The draft was published or discarded meanwhile; {by} is live. This is a new draft of it: save again."


def _changed(request: HttpRequest, document: JsonObject) -> object:
    if "document" in request.POST:
        return texts.load(request.POST["document"])
    removed, found = request.POST.get("remove", ""), models.parse(document)
    return models.dump({name: alias for name, alias in found.items() if name != removed})


def _rebase(request: HttpRequest) -> int | None:
    return selectors.live().number or None if request.POST.get("rebase") else None


def _save(request: HttpRequest, document: object, based_on: int | None = None) -> None:
    etag = request.POST.get("etag") or None
    services.save_draft(document, actor_of(request), if_match=etag, based_on=based_on)


def _no_draft(request: HttpRequest) -> HttpResponse:
    messages.info(request, "The document Models has no open draft.")
    return redirect("models")


def _draft_page(
    request: HttpRequest, *, said: list[str] | None = None, over: Sequence[AliasChange] = (), status: int = 200
) -> HttpResponse:
    held, live = selectors.open_draft(), selectors.live()
    if held is None:
        return _no_draft(request)
    found = models.parse(held.document)
    context = {
        "draft": held,
        "live": live,
        "names": _names(found),
        "changes": changes(live.aliases, found),
        "text": request.POST.get("document") or texts.dump(held.document),
        "moved": held.based_on != live.number,
        "said": said,
        "over": over,
    }
    return render(request, "models/draft.html", context, status=status)


@operator_required
@require_http_methods(["GET", "POST"])
def alias(request: HttpRequest) -> HttpResponse:
    """Show the form for one name of the draft."""
    held = selectors.open_draft()
    if held is None and request.method == "POST":
        shown = form.as_typed(request.POST, {"": _anew(request)})
        return _alias_page(request, shown, services.open_draft(actor_of(request)).etag, status=412)
    if held is None:
        return _no_draft(request)
    found = models.parse(held.document)
    if request.method == "GET":
        name = request.GET.get("name", "")
        known = found.get(name)
        if known is not None and not form.fits(known):
            messages.info(request, f"{name} has adapters in a split: change it in the document.")
            return redirect("models-draft")
        return _alias_page(request, form.of_alias(name, known), held.etag)
    if "more" in request.POST:
        return _alias_page(request, form.as_typed(request.POST, {}, more=2), request.POST.get("etag", ""))
    return _put_alias(request, found)


def _put_alias(request: HttpRequest, found: Models) -> HttpResponse:
    name, was = request.POST.get("name", "").strip(), request.POST.get("was", "")
    errors = {"name": f"{name} is in the document already"} if name != was and name in found else {}
    entries: dict[str, object] = {**models.dump(found)["models"]}  # type: ignore[dict-item]
    entries.pop(was, None)
    entries[name] = form.entry_of(request.POST)
    etag = request.POST.get("etag", "")
    try:
        if not errors:
            _save(request, {"schema": models.SCHEMA, "models": entries})
            return redirect("models-draft")
    except InvalidInput as error:
        errors = _of_fields(name, by_path(error.problems))
    except Conflict as error:
        errors = {"": f"{error}. Save again to put this name into it."}
        held = selectors.open_draft()
        etag = held.etag if held is not None else ""
    return _alias_page(request, form.as_typed(request.POST, errors), etag, status=422)


def _of_fields(name: str, errors: Mapping[str, str]) -> dict[str, str]:
    """Return errors by field of the form: `name`, `pool`, `split[0].weight`, `adapter.name`; others under an empty
    path."""
    prefix, made = f"models.{name[: models.LONGEST_NAME]}", {}
    for path, text in errors.items():
        made["name" if path == prefix else path.removeprefix(f"{prefix}.") if path.startswith(prefix) else ""] = text
    return made


def _alias_page(request: HttpRequest, shown: form.NameForm, etag: str, *, status: int = 200) -> HttpResponse:
    context = {"form": shown, "etag": etag, "pools": pool_names()}
    return render(request, "models/alias.html", context, status=status)


@operator_action
def discard(request: HttpRequest) -> HttpResponse:
    try:
        services.discard_draft(actor_of(request), if_match=request.POST.get("etag") or None)
    except Conflict as error:
        messages.error(request, f"Not discarded: {error}.")
        return redirect("models")
    messages.success(request, "The draft is discarded; the audit log keeps its document.")
    return redirect("models")


# Publishing


@operator_required
@require_GET
def review(request: HttpRequest) -> HttpResponse:
    return _review(request)


def _review(request: HttpRequest, refusal: PublishRefusal | None = None, *, status: int = 200) -> HttpResponse:
    held, live = selectors.open_draft(), selectors.live()
    if held is None:
        return _no_draft(request)
    after = models.parse(held.document)
    context = {
        "draft": held,
        "live": live,
        "next": f"v{live.number + 1}",
        "changes": changes(live.aliases, after),
        "problems": check.problems(held.document, live.aliases),
        "moved": held.based_on != live.number,
        "raw": raw_diff(live.document, held.document, live.label, "draft"),
        "reason": request.POST.get("reason", ""),
        "emergency": request.POST.get("emergency", ""),
        "may_emergency": can_administer(request.user),
        "refused": refusal,
    }
    return render(request, "models/review.html", context, status=status)


@operator_action
def publish(request: HttpRequest) -> HttpResponse:
    etag = request.POST.get("etag") or None
    try:
        made = services.publish(
            actor_of(request),
            request.POST.get("reason", ""),
            if_match=etag,
            emergency=request.POST.get("emergency", ""),
        )
    except NothingToPublish as error:
        messages.info(request, f"{str(error)[0].upper()}{str(error)[1:]}.")
        return redirect("models")
    except InvalidInput as error:
        return _review(request, refusal_of(error), status=422)
    except PermissionDenied as error:
        return _review(request, PublishRefusal([f"{error}."]), status=403)
    except Conflict as error:
        done = selectors.published_from(etag or "")
        if done is not None:  # the same button was pressed twice
            return redirect("models-version", number=done.number)
        return _review(request, PublishRefusal([f"{error}."]), status=409 if error.kind != "draft" else 412)
    messages.success(request, f"{made.version} is live: {made.summary}.")
    return redirect("models-version", number=made.version.number)


@operator_required
@require_http_methods(["GET", "POST"])
def roll_back(request: HttpRequest) -> HttpResponse:
    live, offered = selectors.live(), selectors.rollback_target()
    if request.method == "GET" and offered is None and "to" not in request.GET:
        return render(request, "models/rollback.html", {"live": live})
    target = selectors.version(number_of(request, "to", offered.number if offered is not None else 0))
    if request.method == "GET":
        return _confirm(request, target)
    try:
        made = services.rollback(
            target.number, actor_of(request), request.POST.get("reason", ""), if_match=request.POST.get("etag") or None
        )
    except Conflict as error:
        if live.rollback_of == target.number:  # the same button was pressed twice
            return redirect("models-version", number=live.number)
        return _confirm(request, target, PublishRefusal([str(error)]), status=412)
    except InvalidInput as error:
        return _confirm(request, target, refusal_of(error), status=422)
    messages.success(request, f"{made.version} is live: {made.summary}.")
    return redirect("models-version", number=made.version.number)


def _confirm(
    request: HttpRequest, target: ModelsVersion, refusal: PublishRefusal | None = None, *, status: int = 200
) -> HttpResponse:
    live = selectors.live()
    context = {
        "live": live,
        "target": target,
        "next": f"v{live.number + 1}",
        "changes": changes(live.aliases, models.parse(target.document)),
        "reason": request.POST.get("reason") or f"Roll back from {live.label} to {target.label}",
        "refused": refusal,
    }
    return render(request, "models/rollback.html", context, status=status)
