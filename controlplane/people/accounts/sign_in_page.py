"""The sign-in page, and the page shown after sign-in."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme


def page_after_sign_in(request: HttpRequest) -> str:
    """Return the `next` page, if it is on this host."""
    wanted = request.POST.get("next") or request.GET.get("next") or settings.LOGIN_REDIRECT_URL
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if safe else settings.LOGIN_REDIRECT_URL


def sign_in_page(request: HttpRequest, target: str, status: int = 200, **context: Any) -> HttpResponse:
    """Show sign-in with the provider, with a password, or with both, depending on the settings."""
    ways = {"provider": settings.OIDC.name if settings.OIDC else "", "local": settings.LOCAL_SIGN_IN}
    return render(request, "accounts/login.html", {"next": target, **ways, **context}, status=status)
