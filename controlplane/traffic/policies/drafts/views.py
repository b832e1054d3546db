"""The pages of a draft: edit, review, publish, and settle conflicts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.people.accounts.decorators import operator_action, operator_required
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer
from controlplane.traffic.policies import selectors, services, versions
from controlplane.traffic.policies.drafts import conflicts
from controlplane.traffic.policies.drafts.editor import overrides, sections, strategy_of
from controlplane.traffic.policies.drafts.services import versioned
from controlplane.traffic.policies.drafts.versioned import check_base
from controlplane.traffic.policies.errors import Conflict, NothingToPublish
from controlplane.traffic.policies.metrics import policy_metrics
from controlplane.traffic.policies.models import Draft, Policy
from controlplane.traffic.policies.selectors import scope_of
from controlplane.traffic.policies.views import (
    PublishRefusal,
    ShownChange,
    changes,
    number_of,
    raw_diff,
    refusal_of,
    remember_publication,
)
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, by_path
from router.policy.schema.document import apply_overrides


@operator_action
def open_draft(request: HttpRequest, name: str) -> HttpResponse:
    services.open_draft(selectors.policy(name), actor_of(request))
    return redirect("draft", name=name)


@operator_required
@require_http_methods(["GET", "POST"])
def edit(request: HttpRequest, name: str) -> HttpResponse:
    """Show the form. A POST saves it, and stays on the page or continues to the review."""
    policy = selectors.policy(name)
    draft = selectors.open_draft(policy)
    if draft is None and request.method == "GET":
        messages.info(request, f"Policy {name} has no open draft.")
        return redirect("policy", name=name)
    if request.method == "GET" and draft is not None:
        return render(request, "policies/editor.html", editor_context(request, draft))
    try:
        draft = save(request, policy)
    except Conflict as error:
        return conflicts.page(request, policy, error, conflicts.loaded(request))
    except InvalidInput as error:
        return refused(request, policy, error)
    target = "draft-review" if request.POST.get("action") == "review" else "draft"
    if target == "draft":
        messages.success(request, f"Draft saved {draft.updated_at:%H:%M:%S} UTC.")
    return redirect(target, name=name)


def save(request: HttpRequest, policy: Policy) -> Draft:
    """Apply the entered values to the document from which the form was made. Conflict carries the result as `mine`."""
    return _save(request, policy, conflicts.loaded(request))


def _save(request: HttpRequest, policy: Policy, loaded: JsonObject | None) -> Draft:
    base = loaded or selectors.live_version(policy).upgraded
    typed = apply_overrides(base, overrides(_flat(request), strategy_of(base)))
    return services.save_draft(policy, typed, actor_of(request), if_match=request.POST.get("etag") or None)


def _flat(request: HttpRequest) -> dict[str, str]:
    return {key: str(value)[:200] for key, value in request.POST.items()}


def refused(request: HttpRequest, policy: Policy, error: InvalidInput) -> HttpResponse:
    draft = selectors.open_draft(policy)
    if draft is None:  # published or discarded since the check
        return redirect("policy", name=policy.name)
    errors = by_path(error.problems)
    context = editor_context(request, draft, posted=_flat(request), errors=errors)
    return render(request, "policies/editor.html", context, status=422)


def editor_context(
    request: HttpRequest,
    draft: Draft,
    posted: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> dict[str, object]:
    policy = draft.policy
    live, scope = selectors.live_version(policy), scope_of(policy)
    parts = sections(draft.upgraded, live.upgraded, policy_metrics(scope.pools), posted, errors)
    on_page = {field.path for part in parts for field in part.fields}
    return {
        "policy": policy,
        "draft": draft,
        "live": live,
        "scope": scope,
        "sections": parts,
        "changed": sum(part.changed for part in parts),
        "problems": len(errors or {}),
        "summary": [field for part in parts for field in part.fields if field.error],
        "elsewhere": [text for path, text in (errors or {}).items() if path not in on_page],
        # A rejected form keeps the ETag with which it was loaded, so that a second save still detects a conflict.
        "etag": (posted or {}).get("etag") or draft.etag,
        "loaded": (posted or {}).get("loaded") or json.dumps(draft.upgraded),
        "watch": watch_url(draft),
        "moved": draft.based_on != live.number,
    }


def watch_url(draft: Draft) -> str:
    return f"{reverse('draft-watch', kwargs={'name': draft.policy.name})}?etag={draft.etag}&based_on={draft.based_on}"


@operator_action
def autosave(request: HttpRequest, name: str) -> HttpResponse:
    """Report to htmx whether the values were saved, and mark the fields; the inputs stay untouched."""
    return saved_response(request, "policies/_saved.html", saved(request, selectors.policy(name)))


@dataclass(frozen=True, slots=True)
class SavedDraft:
    """The outcome of saving the entered values."""

    draft: Draft | None = None  # None if nothing was saved
    changes: Sequence[ShownChange] = ()  # changes against the live version
    other_fields: bool = False  # True if another strategy, with other fields, was chosen
    conflict: Conflict | None = None
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def marks(self) -> dict[str, object]:
        """Return the marks of the fields, for the script."""
        return {"errors": self.errors, "kept": self.draft is not None}

    @property
    def loaded(self) -> str:
        return json.dumps(self.draft.upgraded) if self.draft else ""

    @property
    def watch(self) -> str:
        return watch_url(self.draft) if self.draft else ""


def saved(request: HttpRequest, policy: Policy) -> SavedDraft:
    loaded = conflicts.loaded(request)
    try:
        draft = _save(request, policy, loaded)
    except Conflict as error:
        return SavedDraft(conflict=error)
    except InvalidInput as error:
        return SavedDraft(errors=by_path(error.problems))
    other_fields = loaded is not None and strategy_of(loaded) != strategy_of(draft.upgraded)
    return SavedDraft(draft, changes(selectors.live_version(policy).upgraded, draft.upgraded), other_fields)


def saved_response(request: HttpRequest, template: str, saved: SavedDraft, **more: object) -> HttpResponse:
    response = render(request, template, {"saved": saved, **more})
    if saved.other_fields:
        response.headers["HX-Refresh"] = "true"
    return response


@require_GET
def watch(request: HttpRequest, name: str) -> HttpResponse:
    """Answer the regular request of htmx: show a banner if someone else saved, published or discarded the draft."""
    policy = selectors.policy(name)
    draft, live = selectors.open_draft(policy), selectors.live_version(policy)
    context = {
        "policy": policy,
        "draft": draft,
        "live": live,
        "gone": draft is None,
        "saved": draft is not None and draft.etag != request.GET.get("etag"),
        "moved": str(live.number) != request.GET.get("based_on"),
        "at": timezone.now(),
    }
    return render(request, "policies/_watch.html", context)


@operator_required
@require_GET
def review(request: HttpRequest, name: str) -> HttpResponse:
    policy = selectors.policy(name)
    draft = selectors.open_draft(policy)
    if draft is None:
        messages.info(request, f"Policy {name} has no open draft.")
        return redirect("policy", name=name)
    return render(request, "policies/review.html", review_context(request, draft))


def review_context(request: HttpRequest, draft: Draft, refusal: PublishRefusal | None = None) -> dict[str, object]:
    live = selectors.live_version(draft.policy)
    return {
        "policy": draft.policy,
        "draft": draft,
        "live": live,
        "next": f"v{versions.next_number(draft.policy)}",
        "moved": draft.based_on != live.number,
        "changes": changes(live.upgraded, draft.upgraded),
        "raw": raw_diff(live.upgraded, draft.upgraded, live.label, "draft"),
        "scope": scope_of(draft.policy),
        "reason": request.POST.get("reason", ""),
        "emergency": request.POST.get("emergency", ""),
        "may_emergency": can_administer(request.user),
        "refused": refusal,
    }


@operator_action
def publish(request: HttpRequest, name: str) -> HttpResponse:
    policy = selectors.policy(name)
    actor, reason = actor_of(request), request.POST.get("reason", "")
    try:
        publication = services.publish(
            policy,
            actor,
            reason,
            if_match=request.POST.get("etag") or None,
            abort_open=bool(request.POST.get("abort_open")),
            emergency=request.POST.get("emergency", ""),
        )
    except Conflict as error:
        return _not_published(request, policy, error)
    except InvalidInput as error:
        draft = selectors.open_draft(policy)
        if draft is None or isinstance(error, NothingToPublish):
            messages.info(request, f"{str(error)[0].upper()}{str(error)[1:]}.")
            return redirect("policy", name=name)
        return render(request, "policies/review.html", review_context(request, draft, refusal_of(error)), status=422)
    remember_publication(request, publication)
    return redirect("policy-version", name=name, number=publication.version.number)


def _not_published(request: HttpRequest, policy: Policy, error: Conflict) -> HttpResponse:
    done = selectors.published_from(policy, request.POST.get("etag", ""))
    if done is not None:  # the same button was pressed twice
        return redirect("policy-version", name=policy.name, number=done.number)
    draft = selectors.open_draft(policy)
    if draft is None:
        messages.error(request, f"Not published: {error}.")
        return redirect("policy", name=policy.name)
    if error.kind in ("open", "state", "freeze"):  # an open delivery or a freeze prevents it
        refusal = PublishRefusal([f"{error}."])
        return render(request, "policies/review.html", review_context(request, draft, refusal), status=409)
    if error.kind == "draft":  # another person saved after the review, so their values are shown
        refusal = PublishRefusal([f"{error}. Look at the values below once more."])
        return render(request, "policies/review.html", review_context(request, draft, refusal), status=412)
    return conflicts.page(request, policy, error, error.base)


@operator_required
@require_GET
def settle(request: HttpRequest, name: str) -> HttpResponse:
    """Show the draft against a version that was published after the draft was opened."""
    policy = selectors.policy(name)
    draft = selectors.open_draft(policy)
    if draft is None:
        return redirect("policy", name=name)
    try:
        check_base(versioned(policy), draft, selectors.live_version(policy))
    except Conflict as error:
        return conflicts.page(request, policy, error, error.base)
    return redirect("draft-review", name=name)


@operator_action
def discard(request: HttpRequest, name: str) -> HttpResponse:
    policy = selectors.policy(name)
    try:
        services.discard_draft(policy, actor_of(request), if_match=request.POST.get("etag") or None)
    except Conflict as error:
        messages.error(request, f"Not discarded: {error}.")
        return redirect("policy", name=name)
    messages.success(request, "The draft is discarded; the audit log keeps its document.")
    return redirect("policy", name=name)


@operator_action
def resolve(request: HttpRequest, name: str) -> HttpResponse:
    """Save the sides chosen on the conflict page as the next revision of the draft."""
    policy = selectors.policy(name)
    document = conflicts.chosen(request)
    if document is None:
        messages.error(request, "Choose a side for every field; nothing was saved.")
        return redirect("draft-settle", name=name)
    services.open_draft(policy, actor_of(request))  # if the other person has published, my document becomes a new draft
    based_on = number_of(request, "based_on", 0)
    try:
        services.save_draft(
            policy,
            document,
            actor_of(request),
            if_match=request.POST.get("current") or None,
            based_on=based_on or None,
        )
    except Conflict as error:
        return conflicts.page(request, policy, error, conflicts.posted_document(request, "theirs"))
    except InvalidInput as error:
        return refused(request, policy, error)
    return redirect("draft-review", name=name)
