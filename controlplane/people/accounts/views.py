"""Pages for sign-in, sign-out, tokens and users."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import authenticate, get_user_model, login, logout, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.common.as_seen import posted
from controlplane.people.accounts import services, throttle
from controlplane.people.accounts.decorators import admin_action, admin_required
from controlplane.people.accounts.forms import PasswordForm, TokenForm, UserForm
from controlplane.people.accounts.models import ApiToken, OidcIdentity
from controlplane.people.accounts.oidc import views as oidc
from controlplane.people.accounts.secret_page import secret_page
from controlplane.people.accounts.sign_in_page import page_after_sign_in, sign_in_page
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import ROLE_SUMMARY, ROLES, can_administer, role_of, scopes_of


@login_not_required
@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    target = page_after_sign_in(request)
    if request.user.is_authenticated:
        return redirect(target)
    return sign_in_page(request, target) if request.method == "GET" else _attempt(request, target)


def _attempt(request: HttpRequest, target: str) -> HttpResponse:
    if not settings.LOCAL_SIGN_IN:
        return sign_in_page(request, target, status=403)
    username = request.POST.get("username", "").replace("\x00", "")[:150]  # PostgreSQL cannot store NUL
    address = request.META.get("REMOTE_ADDR", "")
    wait = throttle.attempt(username, address)
    if wait:
        response = sign_in_page(request, target, status=429, username=username, wait_minutes=-(-wait // 60))
        response.headers["Retry-After"] = str(wait)
        return response
    user = authenticate(request, username=username, password=request.POST.get("password", ""))
    if user is None:
        services.record_failed_sign_in(username, address)
        return sign_in_page(request, target, status=422, username=username, wrong=True)
    throttle.succeeded(username, address)
    login(request, user)
    services.record_sign_in(user, address)
    return redirect(target)


@login_not_required
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Sign out here first, then at the identity provider if the session began there."""
    url = oidc.sign_out_url(request)
    logout(request)
    return oidc.leaving(request, url) if url else redirect("login")


@login_not_required
@never_cache
@require_http_methods(["GET", "POST"])
def sign_in_link(request: HttpRequest, token: str) -> HttpResponse:
    """Show a one-time link from the host. Only the button consumes it, because programs may fetch links before people
    do."""
    user = services.user_of_link(token, use=request.method == "POST")
    if user is None:
        return render(request, "accounts/sign_in_link.html", {"spent": True}, status=404)
    if request.method == "GET":
        return render(request, "accounts/sign_in_link.html", {"person": user})
    login(request, user, backend=oidc.BACKEND)
    return redirect(settings.LOGIN_REDIRECT_URL)


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """Change the user's own password. Guesses at the current password are throttled like sign-ins."""
    user, address = _person(request), request.META.get("REMOTE_ADDR", "")
    wait = throttle.attempt(user.username, address) if request.method == "POST" else 0
    form = PasswordForm(request.POST if request.method == "POST" and not wait else None, user=user)
    if form.is_bound and "current" not in form.errors:
        throttle.succeeded(user.username, address)
    elif form.is_bound:
        services.record_failed_sign_in(user.username, address)
    if form.is_valid():
        services.change_password(user, form.cleaned_data["new"], actor_of(request))
        update_session_auth_hash(request, user)
        messages.success(request, "Password changed. Your other sessions are signed out.")
        return redirect(settings.LOGIN_REDIRECT_URL)
    context = {"form": form, "wait_minutes": -(-wait // 60), **_identity(user)}
    return render(request, "accounts/own_password.html", context, status=429 if wait else 422 if form.errors else 200)


def _identity(user: User) -> dict[str, object]:
    """Return the identity provider's part of the user's account page."""
    identity = OidcIdentity.objects.filter(user=user).first()
    may_link = settings.OIDC is not None and identity is None and user.username != services.ADMIN
    provider = settings.OIDC.name if settings.OIDC else ""
    return {"identity": identity, "may_link": may_link, "provider": provider, "local": user.has_usable_password()}


# Tokens


@require_http_methods(["GET", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """Show the user's own tokens, or all tokens to an administrator."""
    form = TokenForm(request.POST if request.method == "POST" else None, allowed=scopes_of(request.user))
    issued = None
    if request.method == "POST" and form.is_valid():
        row, token = services.create_token(
            _person(request), form.cleaned_data["name"], form.cleaned_data["scopes"], actor_of(request),
            form.expires_at(),
        )  # fmt: skip
        # No redirect, because the token must not be stored in the session.
        issued = {"name": row.name, "token": token}
        form = TokenForm(allowed=scopes_of(request.user))
    shown = {"tokens": _tokens_for(request), "issued": issued, "all": can_administer(request.user)}
    return secret_page(request, "accounts/tokens.html", form=form, **shown)


def _tokens_for(request: HttpRequest) -> Any:
    rows = ApiToken.objects.select_related("user")
    return rows if can_administer(request.user) else rows.filter(user=_person(request))


def _person(request: HttpRequest) -> User:
    if not isinstance(request.user, User):
        raise TypeError("SignInRequired admits only signed-in users")
    return request.user


@require_POST
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(_tokens_for(request), pk=pk)
    services.revoke_token(row, actor_of(request), if_match=posted(request))
    messages.success(request, f"Token {row.name} revoked.")
    return redirect("tokens")


# Users


@admin_required
@require_http_methods(["GET", "POST"])
def users(request: HttpRequest) -> HttpResponse:
    form = UserForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        services.create_user(data["username"], data["password"], data["role"], actor_of(request))
        messages.success(request, f"User {data['username']} created with the role {data['role']}.")
        return redirect("users")
    people = [
        {
            "user": user,
            "etag": services.user_etag(user),
            "role": role_of(user) or next(iter(user.groups.values_list("name", flat=True)), ""),
            "identity": next(iter(user.oidc_identities.all()), None),
        }
        for user in get_user_model().objects.order_by("username").prefetch_related("groups", "oidc_identities")
    ]
    context = {"form": form, "people": people, "roles": ROLES, "summaries": ROLE_SUMMARY}
    return render(request, "accounts/users.html", context, status=422 if form.errors else 200)


@admin_action
@sensitive_post_parameters()
def change_user(request: HttpRequest, pk: int) -> HttpResponse:
    user = get_object_or_404(get_user_model(), pk=pk)
    actor, seen = actor_of(request), posted(request)
    try:
        if request.POST.get("role") in ROLES:
            services.set_role(user, request.POST["role"], actor, if_match=seen)
            messages.success(request, f"{user.username} is {request.POST['role']} now.")
        elif request.POST.get("active") in ("yes", "no"):
            services.set_active(user, request.POST["active"] == "yes", actor, if_match=seen)
            state = "may sign in" if user.is_active else "is deactivated; sessions and tokens have stopped working"
            messages.success(request, f"{user.username} {state}.")
        elif request.POST.get("password") == "reset":
            password = services.reset_password(user, actor, if_match=seen)
            response = render(request, "accounts/password.html", {"person": user, "password": password})
            response.headers["Cache-Control"] = "no-store"
            return response
    except services.NotChanged as error:
        messages.error(request, f"Not changed: {error}.")
    return redirect(reverse("users"))
