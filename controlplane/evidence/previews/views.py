"""Views of previews: start one from a draft, watch, cancel and show it."""

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET
from pydantic import ValidationError

from controlplane.common import input_errors
from controlplane.evidence.previews import page, policy_job, selectors, services
from controlplane.evidence.previews.body import PreviewIn
from controlplane.evidence.previews.models import Preview
from controlplane.people.accounts.decorators import operator_action
from controlplane.people.audit.services import actor_of
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts import conflicts, views
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.selectors import policy as find
from router.contract.values.fields import typed_number
from router.contract.values.problem import InvalidInput

NOT_SAVED = "the draft could not be saved: see the message beside “Save draft”"


@operator_action
def start(request: HttpRequest, name: str) -> HttpResponse:
    """Preview the draft. If the form has the draft's fields, the draft is saved first; an invalid one is refused."""
    policy = find(name)
    if request.headers.get("HX-Request"):
        return _start_in_place(request, policy)
    try:
        if "loaded" in request.POST:
            views.save(request, policy)
    except Conflict as error:
        return conflicts.page(request, policy, error, conflicts.loaded(request))
    except InvalidInput as error:
        return views.refused(request, policy, error)
    try:
        preview = services.start(policy, actor_of(request), asked(request.POST))
    except Conflict as error:
        messages.info(request, f"{error}.")
        return redirect("policy", name=name)
    except InvalidInput as error:
        return _not_started(request, policy, error)
    return redirect("preview", name=name, number=preview.pk)


def _not_started(request: HttpRequest, policy: Policy, error: InvalidInput) -> HttpResponse:
    draft = policies.open_draft(policy)
    if draft is None:  # published or discarded since the check
        return redirect("policy", name=policy.name)
    problems = {"preview_problems": page.problems_of(error), "preview_typed": request.POST}
    context = {**views.editor_context(request, draft), **problems}
    return render(request, "policies/editor.html", context, status=422)


def _start_in_place(request: HttpRequest, policy: Policy) -> HttpResponse:
    """Answer htmx with the state of the panel and the result of an autosave."""
    saved = views.saved(request, policy)
    problems = [] if saved.draft else [("", NOT_SAVED)]
    if not problems:
        try:
            services.start(policy, actor_of(request), asked(request.POST))
        except (Conflict, InvalidInput) as error:
            problems = page.problems_of(error)
    context = {**_of_draft(request, policy), "problems": problems}
    return views.saved_response(request, "previews/_started.html", saved, **context)


def asked(form: QueryDict) -> PreviewIn:
    """Return the chosen pool, trace and seeds. Raise InvalidInput."""
    seeds = dict.fromkeys(typed_number(word) for word in form.get("seeds", "").replace(",", " ").split())
    raw = {"pool": form.get("pool", ""), "trace": form.get("trace", ""), "seeds": list(seeds) or [1]}
    try:
        return PreviewIn.model_validate(raw)
    except ValidationError as error:
        problems = [replace(each, path=each.path.partition(".")[0]) for each in input_errors.problems_of(error)]
        raise InvalidInput(problems=problems) from None


@require_GET
def draft_state(request: HttpRequest, name: str) -> HttpResponse:
    """Answer htmx on the editor with the latest preview of the draft."""
    return render(request, "previews/_state.html", _of_draft(request, find(name)))


def _of_draft(request: HttpRequest, policy: Policy) -> dict[str, Any]:
    draft = policies.open_draft(policy)
    return page.panel(request, policy, draft, selectors.latest_of(draft) if draft else None)


@require_GET
def state(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Answer htmx on the page of a preview."""
    return render(request, "previews/_state.html", _of_itself(request, policy_job.numbered(Preview, name, number)))


@require_GET
def preview_page(request: HttpRequest, name: str, number: int) -> HttpResponse:
    return render(request, "previews/preview.html", _of_itself(request, policy_job.numbered(Preview, name, number)))


def _of_itself(request: HttpRequest, preview: Preview) -> dict[str, Any]:
    policy = preview.policy
    return page.panel(request, policy, policies.open_draft(policy), preview, fixed=True)


@operator_action
def cancel(request: HttpRequest, name: str, number: int) -> HttpResponse:
    preview = policy_job.numbered(Preview, name, number)
    policy_job.cancel(preview, actor_of(request))
    if not request.headers.get("HX-Request"):
        return redirect("preview", name=name, number=number)
    fixed = "fixed" in request.POST
    context = _of_itself(request, preview) if fixed else _of_draft(request, preview.policy)
    return render(request, "previews/_state.html", context)
