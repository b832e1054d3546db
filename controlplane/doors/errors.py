"""Error pages: what happened, what still works, what to do, and the request id to quote."""

import sys
from collections.abc import Mapping

from django.contrib import messages
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.defaultfilters import capfirst
from django.template.loader import render_to_string
from django.utils.http import url_has_allowed_host_and_scheme

from controlplane.common.as_seen import ChangedMeanwhile
from controlplane.common.computing import Busy, NotComputed, asked_by
from controlplane.common.database_trouble import READ_ONLY, trouble_of
from controlplane.doors.api import problems
from controlplane.doors.api.auth import principal_of
from controlplane.doors.api.handlers import full, is_full
from controlplane.doors.api.middleware import Middleware
from controlplane.doors.api.problems import ApiProblem, request_id_of
from controlplane.people.accounts.decorators import RoleMissing
from controlplane.people.permissions import who_can
from router.contract.net.retry_after import retry_after


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api(request):
        return problems.response(request, ApiProblem(400, detail=str(exception)))
    return _standalone("errors/400.html", request, 400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api(request):
        return problems.response(request, ApiProblem(403, detail=str(exception)))
    role = exception.role if isinstance(exception, RoleMissing) else ""
    context = {"role": role, "helpers": who_can(role or "admin"), "request_id": request_id_of(request)}
    return render(request, "errors/403.html", context, status=403)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    if _is_api(request):
        return problems.response(request, ApiProblem(403, detail=reason))
    return render(request, "errors/csrf.html", {"request_id": request_id_of(request)}, status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api(request):
        detail = f"nothing is served at {request.path}; see /api/v1/openapi.json"
        return problems.response(request, ApiProblem(404, detail=detail))
    # Django's text for an unknown URL would show the URL configuration.
    said = str(exception) if exception.args and isinstance(exception.args[0], str) else ""
    return render(request, "errors/404.html", {"said": said, "request_id": request_id_of(request)}, status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer while Django handles the exception: an unreachable, locked or read-only database is a known condition, not
    a crash."""
    error = sys.exc_info()[1]
    if trouble := trouble_of(error):
        return unavailable(request, trouble)
    if is_full(error):
        return problems.response(request, full()) if _is_api(request) else _standalone("errors/507.html", request, 507)
    if _is_api(request):
        return problems.response(request, ApiProblem(500, detail="the error is in the log under this request id"))
    return _standalone("errors/500.html", request, 500)


def unavailable(request: HttpRequest, trouble: str) -> HttpResponse:
    if _is_api(request):
        return problems.response(request, ApiProblem(503, detail=trouble))
    return _standalone("errors/read_only.html" if trouble == READ_ONLY else "errors/503.html", request, 503)


# Computations that were not carried out: status, title and advice of their page
UNCOMPUTED: Mapping[type[Exception], tuple[int, str, str]] = {
    Busy: (429, "Too much is being computed", ""),
    NotComputed: (
        503,
        "Not computed",
        "Nothing was changed. Ask for less, or try again when this host has more memory.",
    ),
}


def uncomputed(request: HttpRequest, exception: Exception) -> HttpResponse | None:
    if type(exception) not in UNCOMPUTED:
        return None
    status, title, advice = UNCOMPUTED[type(exception)]
    asks_again = status == 429 and request.method == "GET"
    said = f"{capfirst(str(exception))}. {'This page asks again by itself.' if asks_again else advice}".strip()
    page = _standalone("errors/_standalone.html", request, status, title=title, said=said)
    if asks_again:
        page.headers["Refresh"] = str(retry_after(status))
    return page


def _standalone(template: str, request: HttpRequest, status: int, **more: str) -> HttpResponse:
    """Render without context processors, which may depend on the part that failed."""
    return HttpResponse(render_to_string(template, {"request_id": request_id_of(request), **more}), status=status)


class RetryAfter(Middleware):
    """Adds Retry-After to pages and API answers whose view did not set it."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        after = retry_after(answer.status_code)
        if after is not None:
            answer.setdefault("Retry-After", str(after))
        return answer


class Asker(Middleware):
    """Names the user on whose behalf a request computes (controlplane/common/computing.py), and answers a page whose
    computation was not carried out; the API's handlers answer API calls."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with asked_by(lambda: _user_of(request)):
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        return uncomputed(request, exception)


def _user_of(request: HttpRequest) -> str:
    """Return the user; a user's tokens count as that user."""
    principal = principal_of(request) if _is_api(request) else None
    return str(principal.user_id if principal else request.user.pk)


class WrongMethod(Middleware):
    """Adds a body to Django's empty answer to a wrong method, which browsers would show as a server failure."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        if answer.status_code != 405 or _is_api(request):
            return answer
        page = _standalone("errors/405.html", request, 405)
        page.headers["Allow"] = answer.headers.get("Allow", "")
        return page


class NoNul(Middleware):
    """Answers 400 to addresses with a NUL character, which PostgreSQL cannot store."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if "\x00" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
            return bad_request(request, SuspiciousOperation("the address contains a NUL character"))
        return self.get_response(request)


class StaleForm(Middleware):
    """Refuses a form that is outdated by someone else's change, and redirects to the current state."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, ChangedMeanwhile):
            return None
        messages.error(request, f"Nothing was done: {exception}.")
        back = request.headers.get("Referer", "")
        own = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
        return redirect(back if own else "/")
