"""The API keys page: operators see the keys, administrators create and revoke them."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.common.as_seen import posted
from controlplane.people.accounts.decorators import admin_required, operator_required
from controlplane.people.accounts.secret_page import secret_page
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer
from controlplane.traffic.keys import services
from controlplane.traffic.keys.forms import KeyForm, RequiredForm
from controlplane.traffic.keys.models import ApiKey
from router.contract.problem import InvalidInput


def keys(request: HttpRequest) -> HttpResponseBase:
    return _make(request) if request.method == "POST" else _see(request)


@operator_required
@require_GET
def _see(request: HttpRequest) -> HttpResponse:
    return _page(request, KeyForm(pools=services.pool_names()))


@admin_required
@require_http_methods(["POST"])
def _make(request: HttpRequest) -> HttpResponse:
    form = KeyForm(request.POST, pools=services.pool_names())
    if not form.is_valid():
        return _page(request, form)
    try:
        row, secret = services.create_key(form.cleaned_data["name"], form.terms(), actor_of(request))
    except InvalidInput as error:
        path = error.problems[0].path
        form.add_error(path if path in form.fields else None, str(error).capitalize() + ".")
        return _page(request, form)
    # No redirect: the secret must not pass through the session.
    return _page(request, KeyForm(pools=services.pool_names()), issued={"name": row.name, "secret": secret})


def _page(request: HttpRequest, form: KeyForm, issued: dict[str, str] | None = None) -> HttpResponse:
    required = services.required_pools()
    context = {
        "keys": ApiKey.objects.all(),
        "issued": issued,
        "required": required,
        "required_etag": services.required_etag(),
        "required_form": RequiredForm(initial={"required": required}, pools=services.pool_names()),
        "may_change": can_administer(request.user),
    }
    return secret_page(request, "keys/keys.html", form=form, **context)


@admin_required
@require_POST
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(ApiKey, pk=pk)
    services.revoke_key(row, actor_of(request), if_match=posted(request))
    messages.success(request, f"API key {row.name} revoked. Routers refuse it from now on.")
    return redirect("keys")


@admin_required
@require_POST
def require(request: HttpRequest) -> HttpResponse:
    form = RequiredForm(request.POST, pools=services.pool_names())
    if form.is_valid():
        pools = services.require_keys(form.cleaned_data["required"], actor_of(request), if_match=posted(request))
        said = "no pool" if not pools else "every pool" if "*" in pools else ", ".join(pools)
        messages.success(request, f"An API key is required for {said}.")
    else:
        messages.error(request, "Not changed: one of these pools no longer exists.")
    return redirect("keys")
