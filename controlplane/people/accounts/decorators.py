"""Role checks for page views: without the role, a 403 page names the people who can help. Pages link only to views that
the reader's role may open.
"""

import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.urls import Resolver404, resolve
from django.views.decorators.http import require_POST

from controlplane.people.permissions import can_administer, can_operate, can_view

View = Callable[..., HttpResponseBase]
ALLOWED: dict[str, Callable[[Any], bool]] = {"viewer": can_view, "operator": can_operate, "admin": can_administer}


class RoleMissing(PermissionDenied):
    """The signed-in person's role does not allow this."""

    def __init__(self, role: str) -> None:
        self.role = role
        super().__init__(f"this requires the role {role}")


def _guard(view: View, role: str) -> View:
    @functools.wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not ALLOWED[role](request.user):
            raise RoleMissing(role)
        return view(request, *args, **kwargs)

    guarded.__dict__["role"] = role  # kept by the decorators around it
    return guarded


def viewer_required(view: View) -> View:
    return _guard(view, "viewer")


def operator_required(view: View) -> View:
    return _guard(view, "operator")


def admin_required(view: View) -> View:
    return _guard(view, "admin")


def operator_action(view: View) -> View:
    """Allow only POSTs, and only to operators."""
    return operator_required(require_POST(view))


def admin_action(view: View) -> View:
    """Allow only POSTs, and only to administrators."""
    return admin_required(require_POST(view))


def may_open(user: Any, address: str) -> bool:
    """Return whether the user's role allows the page at an address of this site."""
    try:
        view = resolve(urlsplit(address).path).func
    except Resolver404:
        return False
    return ALLOWED[getattr(view, "role", "viewer")](user)
