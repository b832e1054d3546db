"""Sign-in through the identity provider: the redirect there, the callback, and back-channel logout."""

import base64
import hashlib
import json
import secrets
import time
from functools import lru_cache, wraps
from typing import Any
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.core.signing import BadSignature
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from controlplane.base.process.oidc_settings import OidcConfig
from controlplane.people.accounts.oidc import identities
from controlplane.people.accounts.oidc.claims import granted, is_unverified, with_userinfo
from controlplane.people.accounts.oidc.errors import ProviderAway, SignInRefused
from controlplane.people.accounts.oidc.provider import Provider
from controlplane.people.accounts.sign_in_page import page_after_sign_in, sign_in_page
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import SYSTEM, actor_of

log = structlog.get_logger(__name__)
COOKIE, SALT, COOKIE_PATH = "weir_oidc", "weir.oidc", "/oidc"
COOKIE_S = 600
AGAIN_S = 10  # Retry-After while the provider is unreachable
BACKEND = "django.contrib.auth.backends.ModelBackend"


@lru_cache(maxsize=1)
def provider_of(config: OidcConfig) -> Provider:
    return Provider(config)


def _with_provider(view: Any) -> Any:
    """Answer 404 if sign-in with a provider is not set up."""

    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        if settings.OIDC is None:
            raise Http404
        answer: HttpResponse = view(request, provider_of(settings.OIDC))
        return answer

    return guarded


@login_not_required
@never_cache
@require_GET
@_with_provider
def begin(request: HttpRequest, provider: Provider) -> HttpResponse:
    target = page_after_sign_in(request)
    if request.user.is_authenticated:
        return redirect(target)
    try:
        url, started = _started(request, provider, {"next": target})
    except ProviderAway as error:
        return _away(request, target, error)
    return _remember(redirect(url), started)


@never_cache
@require_POST
@_with_provider
def begin_link(request: HttpRequest, provider: Provider) -> HttpResponse:
    """Link the signed-in user's account. The page redirects by script, because CSP's form-action would also block a
    redirect."""
    try:
        url, started = _started(request, provider, {"next": reverse("password"), "link": request.user.pk})
    except ProviderAway as error:
        messages.error(request, f"The identity provider cannot be reached: {error}. Try again.")
        return redirect("password")
    return _remember(leaving(request, url), started)


def leaving(request: HttpRequest, url: str) -> HttpResponse:
    """Return a page that redirects to the provider."""
    return render(request, "accounts/leaving.html", {"url": url, "provider": urlsplit(url).netloc})


def _started(request: HttpRequest, provider: Provider, more: dict[str, Any]) -> tuple[str, str]:
    """Return (the provider's URL, the state that this browser must return)."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    url = provider.sign_in_url(_callback_url(request), state, nonce, challenge)
    return url, json.dumps({"state": state, "nonce": nonce, "verifier": verifier, **more})


def _callback_url(request: HttpRequest) -> str:
    return request.build_absolute_uri(reverse("oidc-callback"))


def _remember(response: HttpResponse, started: str) -> HttpResponse:
    """Store the state in a signed cookie, so that strangers who begin a sign-in store nothing on the server."""
    response.set_signed_cookie(
        COOKIE, started, salt=SALT, max_age=COOKIE_S, path=COOKIE_PATH, httponly=True, samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE or False,
    )  # fmt: skip
    return response


@login_not_required
@never_cache
@require_GET
@_with_provider
def callback(request: HttpRequest, provider: Provider) -> HttpResponse:
    target = settings.LOGIN_REDIRECT_URL
    try:
        started = _brought_back(request)
        target = started["next"]
        response = _finish(request, provider, started)
    except ProviderAway as error:
        response = _away(request, target, error)
    except SignInRefused as error:
        log.warning("signin.refused", reason=error.code, detail=error.detail)
        response = sign_in_page(request, target, status=403, refused=error.sentence, code=error.code)
    response.delete_cookie(COOKIE, path=COOKIE_PATH, samesite="Lax")
    return response


def _brought_back(request: HttpRequest) -> dict[str, Any]:
    try:
        started = json.loads(request.get_signed_cookie(COOKIE, salt=SALT, max_age=COOKIE_S) or "")
    except (KeyError, BadSignature, ValueError):
        raise SignInRefused("not_started_here") from None
    if not secrets.compare_digest(request.GET.get("state", "").encode(), started["state"].encode()):
        raise SignInRefused("not_started_here")
    found: dict[str, Any] = started
    return found


def _finish(request: HttpRequest, provider: Provider, started: dict[str, Any]) -> HttpResponse:
    if "error" in request.GET:
        refusal = f"{request.GET['error']}: {request.GET.get('error_description', '')}"
        raise SignInRefused("provider_refused", refusal[:200].rstrip(": "))
    # RFC 9207: the answer of another provider is refused.
    promised = provider.metadata().get("authorization_response_iss_parameter_supported")
    if request.GET.get("iss", None if promised else provider.config.issuer) != provider.config.issuer:
        raise SignInRefused("issuer", request.GET.get("iss", "")[:200])
    tokens = provider.exchange(request.GET.get("code", ""), started["verifier"], _callback_url(request))
    try:
        return _signed_in(request, provider, started, tokens)
    except SignInRefused as error:  # only the provider's own answers are recorded: strangers cannot fill the audit log
        after = {"reason": error.code, "detail": error.detail}
        audit.record(SYSTEM, "user.sign_in_failed", "identity provider", after=after)
        raise


def _signed_in(
    request: HttpRequest, provider: Provider, started: dict[str, Any], tokens: dict[str, Any]
) -> HttpResponse:
    from controlplane.people.accounts.oidc.tokens import id_token_claims

    config = provider.config
    claims = id_token_claims(tokens["id_token"], provider, started["nonce"], time.time())
    if granted(claims, config) is None or is_unverified(claims, config):
        claims = with_userinfo(claims, provider.userinfo(tokens.get("access_token", ""), claims["sub"]))
    if "link" in started:
        if started["link"] != request.user.pk or not isinstance(request.user, User):
            raise SignInRefused("not_started_here")
        identities.link(request.user, claims, config, actor_of(request))
    identity = identities.sign_in(claims, config)
    login(request, identity.user, backend=BACKEND)
    identities.opened(request, identity, config, claims, tokens["id_token"])
    audit.record(actor_of(request), "user.sign_in", f"user {identity.user.username}", after={"provider": config.issuer})
    return redirect(started["next"])


def _away(request: HttpRequest, target: str, error: ProviderAway) -> HttpResponse:
    log.warning("signin.provider_away", error=str(error))
    response = sign_in_page(request, target, status=503, away=True)
    response.headers["Retry-After"] = str(AGAIN_S)
    return response


@csrf_exempt  # the provider's server calls this without a session; its signature authenticates the call
@login_not_required
@never_cache
@require_POST
@_with_provider
def back_channel_logout(request: HttpRequest, provider: Provider) -> HttpResponse:
    from controlplane.people.accounts.oidc.tokens import logout_claims

    try:
        claims = logout_claims(request.POST.get("logout_token", ""), provider, time.time())
    except SignInRefused as error:
        return JsonResponse({"error": "invalid_request", "error_description": str(error)}, status=400)
    except ProviderAway as error:
        return JsonResponse({"error": "temporarily_unavailable", "error_description": str(error)}, status=503)
    ended = identities.log_out(claims, provider.config)
    log.info("signin.ended_by_provider", sessions=ended)
    return HttpResponse(status=200)


def sign_out_url(request: HttpRequest) -> str:
    """Return the provider's sign-out URL for sessions that began there; empty for other sessions, or while the provider
    is unreachable."""
    id_token = request.session.get("oidc_id_token")
    if settings.OIDC is None or not id_token:
        return ""
    try:
        back_to = request.build_absolute_uri(reverse("login"))
        return provider_of(settings.OIDC).sign_out_url(id_token, back_to, secrets.token_urlsafe(16))
    except ProviderAway as error:
        log.warning("signin.provider_away", error=str(error))
        return ""
