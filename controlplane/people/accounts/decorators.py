"""Role checks for page views: without the role, a 403 page names the people who can help."""

import functools
from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from controlplane.people.permissions import can_administer, can_operate, can_view

View = Callable[..., HttpResponseBase]


class RoleMissing(PermissionDenied):
    """The signed-in person's role does not allow this."""

    def __init__(self, role: str) -> None:
        self.role = role
        super().__init__(f"this requires the role {role}")


def _guard(view: View, role: str, allowed: Callable[[Any], bool]) -> View:
    @functools.wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not allowed(request.user):
            raise RoleMissing(role)
        return view(request, *args, **kwargs)

    return guarded


def viewer_required(view: View) -> View:
    return _guard(view, "viewer", can_view)


def operator_required(view: View) -> View:
    return _guard(view, "operator", can_operate)


def admin_required(view: View) -> View:
    return _guard(view, "admin", can_administer)
