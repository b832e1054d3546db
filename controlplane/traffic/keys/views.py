"""The API keys page: operators see the keys, administrators create and revoke them."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from controlplane.common.as_seen import posted
from controlplane.people.accounts.decorators import admin_action, admin_required, operator_required
from controlplane.people.accounts.forms import EXPIRIES, ExpiringForm
from controlplane.people.accounts.secret_page import secret_page
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer
from controlplane.traffic.keys import services
from controlplane.traffic.keys.models import ALL_POOLS, ApiKey
from controlplane.traffic.keys.services import LIMIT_MAX, KeyTerms
from router.contract.redis.api_keys import BAND_MAX
from router.contract.values.problem import InvalidInput


class KeyForm(ExpiringForm):
    name = forms.CharField(
        max_length=80, label="Name", help_text="The team or service that uses it, for example “search team”."
    )
    pools = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, required=False, label="Pools")
    models = forms.CharField(
        required=False,
        max_length=2000,
        label="Models",
        help_text="Names that it may ask for, by commas. Empty: every one.",
    )
    requests_per_min = forms.IntegerField(
        required=False, min_value=1, max_value=LIMIT_MAX, label="Requests per minute", help_text="Empty: no limit."
    )
    tokens_per_min = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=LIMIT_MAX,
        label="Tokens per minute",
        help_text="Prompt and answer. Empty: no limit.",
    )
    priority = forms.IntegerField(
        required=False,
        min_value=-BAND_MAX,
        max_value=BAND_MAX,
        label="Priority",
        help_text=f"Of requests that ask for none: -{BAND_MAX} to {BAND_MAX}, higher is admitted earlier. Empty: 0.",
    )
    priority_max = forms.IntegerField(
        required=False,
        min_value=-BAND_MAX,
        max_value=BAND_MAX,
        label="Highest priority",
        help_text="That its requests may ask for. Empty: 0, or the priority if that is higher.",
    )
    expires = forms.ChoiceField(choices=EXPIRIES, required=False, initial="", label="Expires")

    def __init__(self, *args: Any, pools: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["pools"].choices = [(pool, pool) for pool in pools]  # type: ignore[attr-defined]

    def terms(self) -> KeyTerms:
        data = self.cleaned_data
        return KeyTerms(
            pools=tuple(data["pools"]),
            models=tuple(name for part in data["models"].split(",") if (name := part.strip())),
            requests_per_min=data["requests_per_min"],
            tokens_per_min=data["tokens_per_min"],
            priority=data["priority"] or 0,
            priority_max=data["priority_max"],
            expires_at=self.expires_at(),
        )


class RequiredForm(forms.Form):
    required = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, required=False, label="Keys required")

    def __init__(self, *args: Any, pools: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        every = (ALL_POOLS, "every pool, including future pools")
        self.fields["required"].choices = [every, *((pool, pool) for pool in pools)]  # type: ignore[attr-defined]


@operator_required
@require_http_methods(["GET", "POST"])
def keys(request: HttpRequest) -> HttpResponseBase:
    return _make(request) if request.method == "POST" else _page(request, KeyForm(pools=services.pool_names()))


@admin_required
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
    # No redirect, because the secret must not be stored in the session.
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


@admin_action
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(ApiKey, pk=pk)
    services.revoke_key(row, actor_of(request), if_match=posted(request))
    messages.success(request, f"API key {row.name} revoked. Routers refuse it from now on.")
    return redirect("keys")


@admin_action
def require(request: HttpRequest) -> HttpResponse:
    form = RequiredForm(request.POST, pools=services.pool_names())
    if form.is_valid():
        pools = services.require_keys(form.cleaned_data["required"], actor_of(request), if_match=posted(request))
        said = "no pool" if not pools else "every pool" if "*" in pools else ", ".join(pools)
        messages.success(request, f"An API key is required for {said}.")
    else:
        messages.error(request, "Not changed: one of these pools no longer exists.")
    return redirect("keys")
