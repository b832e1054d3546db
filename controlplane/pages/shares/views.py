"""The page of shares, for administrators; the shared wall and badges, for holders of a token."""

import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import AnonymousUser
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.common.as_seen import posted
from controlplane.live.dashboard import page
from controlplane.live.dashboard.frame.types import LATENCIES
from controlplane.pages.shares import badge as badges
from controlplane.pages.shares import services
from controlplane.pages.shares.consumers import SECONDS, frame_now, snapshot
from controlplane.pages.shares.kinds import name
from controlplane.pages.shares.models import Share
from controlplane.people.accounts.decorators import admin_action, admin_required
from controlplane.people.accounts.forms import EXPIRIES, ExpiringForm
from controlplane.people.accounts.secret_page import secret_page
from controlplane.people.audit.services import actor_of
from fleet import selectors
from fleet.models import Pool
from router.policy.types import CLASSES


class ShareForm(ExpiringForm):
    name = forms.CharField(max_length=80, label="Name", help_text="Where it will stand, for example “status page”.")
    pool = forms.ChoiceField(required=False, label="Shows")
    expires = forms.ChoiceField(choices=EXPIRIES, required=False, initial="90", label="Expires")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Pool.objects.order_by("name").values_list("name", flat=True)
        choices = [("", "all pools"), *((name, f"pool {name}") for name in names)]
        self.fields["pool"].choices = choices  # type: ignore[attr-defined]


@admin_required
@require_http_methods(["GET", "POST"])
def shares(request: HttpRequest) -> HttpResponse:
    form = ShareForm(request.POST if request.method == "POST" else None)
    issued = None
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        row, token = services.create_share(data["name"], data["pool"], actor_of(request), form.expires_at())
        # No redirect, because the token must not be stored in the session.
        wall = request.build_absolute_uri(reverse("shared-wall", args=[token]))
        badge = request.build_absolute_uri(reverse("badge", args=[token, row.pool or "POOL", "svg"]))
        issued = {"name": row.name, "wall": wall, "badge": badge}
        form = ShareForm()
    shown = {"shares": Share.objects.all(), "issued": issued, "origins": settings.EMBED_ORIGINS}
    return secret_page(request, "shares/shares.html", form=form, **shown)


@admin_action
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Share, pk=pk)
    services.revoke_share(row, actor_of(request), if_match=posted(request))
    messages.success(request, f"Share {row.name} revoked: its walls close within 5 s.")
    return redirect("shares")


def shared(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Pass the share to the view, without sign-in; 404 for a token without a share. The address is a secret."""

    @wraps(view)
    def opened(request: HttpRequest, token: str, **named: Any) -> HttpResponseBase:
        share = services.share_of(token)
        if share is None:
            raise Http404("this share does not exist, or no longer")
        response = view(request, share, **named)
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Robots-Tag"] = "noindex"
        return response

    return login_not_required(opened)


@shared
@require_GET
@never_cache
def wall(request: HttpRequest, share: Share) -> HttpResponse:
    """Show the wall. The listed origins may frame it. Browsers send no cookies from foreign frames, and the wall
    sets none."""
    context = {
        "user": AnonymousUser(),  # even if the reader is signed in
        "navigation": [],
        "messages": [],
        "fleet_name": name(selectors.fleet_name()),
        "snapshot": snapshot(share.pool, SECONDS),
        "settings": {
            "seconds": SECONDS,
            "window": None,
            "kiosk": True,
            "pool": share.pool,
            "asked": {},
            "mayRollBack": False,
            "share": True,
            **page.CONSTANTS,
        },
        "classes": CLASSES,
        "latencies": LATENCIES,
    }
    response = render(request, "shares/wall.html", context)
    if settings.EMBED_ORIGINS:
        response._csp_replace = {"frame-ancestors": settings.EMBED_ORIGINS}  # type: ignore[attr-defined]
        response.xframe_options_exempt = True  # X-Frame-Options cannot list origins
    return response


@shared
@require_GET
def badge(request: HttpRequest, share: Share, pool: str, form: str) -> HttpResponse:
    frame = frame_now(share.pool)  # without the history, which costs more than everything else
    known: Iterable[str] = frame["pools"] if frame is not None else (share.pool,)
    if pool not in known or not pool:
        raise Http404("this share shows no such pool")
    made = badges.badge(frame, pool, time.time())
    response: HttpResponse
    if form == "svg":
        response = HttpResponse(badges.svg(made), content_type="image/svg+xml")
    elif form == "shields":
        response = JsonResponse(badges.shields(made))
    else:
        names = ("pool", "message", "color", "ready", "wanted", "at")
        response = JsonResponse({name: getattr(made, name) for name in names})
    response.headers["Cache-Control"] = "no-cache"
    return response
