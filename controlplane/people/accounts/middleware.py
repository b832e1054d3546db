"""Requires a signed-in user on every page but sign-in, health and static files. The API authenticates by itself."""

from collections.abc import Callable
from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from controlplane.people.accounts.decorators import RoleMissing
from controlplane.people.permissions import can_view

API = "/api/"


class SignInRequired(LoginRequiredMiddleware):
    """Redirects to sign-in. A person without any role is signed in but sees nothing. A request for a part of a page
    must not leave the page, where the person may have entered text: the page is notified instead (static/js/base.js).
    """

    def process_view(
        self, request: HttpRequest, view_func: Callable[..., Any], view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        if request.path.startswith(API) or not getattr(view_func, "login_required", True):
            return None
        if request.user.is_authenticated and not can_view(request.user):
            raise RoleMissing("viewer")
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(  # type: ignore[override]  # 204 for htmx, not a redirect
        self, request: HttpRequest, view_func: Callable[..., Any]
    ) -> HttpResponseBase:
        if request.headers.get("HX-Request"):
            return HttpResponse(status=204, headers={"HX-Trigger": "weir:signed-out"})
        return super().handle_no_permission(request, view_func)
