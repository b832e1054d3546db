"""The Notices pages: for administrators, channels and their sent notices; for operators, notes."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from controlplane.common.as_seen import posted
from controlplane.people.accounts.decorators import admin_action, admin_required, operator_action
from controlplane.people.accounts.secret_page import secret_page
from controlplane.people.audit.services import actor_of
from controlplane.people.notices import selectors, services
from controlplane.people.notices.display import masked_url
from controlplane.people.notices.forms import ChangeChannelForm, NewChannelForm
from controlplane.people.notices.models import Channel
from fleet.models import Pool
from router.contract.values.problem import InvalidInput, invalid


@operator_action
def note(request: HttpRequest) -> HttpResponse:
    """Write a note from the form on Live."""
    pool = Pool.objects.filter(name=request.POST.get("pool", "")[:63], ephemeral_owner="").first()
    try:
        if pool is None:
            raise invalid("pool", None, "there is no such pool")
        services.write_note(pool, request.POST.get("text", ""), actor_of(request))
    except InvalidInput as error:
        messages.error(request, f"Not written: {error}.")
    else:
        messages.success(request, "The note is on the charts.")
    return redirect("live")


@admin_required
@require_http_methods(["GET", "POST"])
def channels(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _list(request, NewChannelForm(initial={"events": ["*"]}))
    form = NewChannelForm(request.POST)
    if not form.is_valid():
        return _list(request, form)
    try:
        row, secret = services.create_channel(form.cleaned_data["kind"], form.terms(), actor_of(request))
    except InvalidInput as error:
        form.refuse(error)
        return _list(request, form)
    # No redirect, because the secret must not be stored in the session.
    return _list(request, NewChannelForm(initial={"events": ["*"]}), issued={"name": row.name, "secret": secret})


def _list(request: HttpRequest, form: NewChannelForm, issued: dict[str, str] | None = None) -> HttpResponse:
    return secret_page(request, "notices/channels.html", form=form, rows=selectors.channel_rows(), issued=issued)


@admin_required
@require_http_methods(["GET", "POST"])
def channel(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Channel, pk=pk)
    if request.method == "GET":
        return _one(request, row, _filled(row))
    form = ChangeChannelForm(request.POST)
    if form.is_valid():
        try:
            services.change_channel(row, form.change(), actor_of(request), if_match=posted(request))
        except InvalidInput as error:
            form.refuse(error)
        else:
            messages.success(request, f"Channel {row.name} saved.")
            return redirect("channel", pk=pk)
    return _one(request, row, form)


def _filled(row: Channel) -> ChangeChannelForm:
    return ChangeChannelForm(initial={"name": row.name, "events": row.events, "words": row.words})


def _one(
    request: HttpRequest, row: Channel, form: ChangeChannelForm, issued: dict[str, str] | None = None
) -> HttpResponse:
    return secret_page(
        request,
        "notices/channel.html",
        form=form,
        channel=row,
        url=masked_url(row.url),
        log=selectors.log_of(row),
        issued=issued,
    )


@admin_required
@require_http_methods(["GET", "POST"])
def rotate(request: HttpRequest, pk: int) -> HttpResponse:
    """Rotate the secret and answer with the channel's page, whose forms then refer to the new state."""
    row = get_object_or_404(Channel, pk=pk)
    if request.method == "GET":
        return redirect("channel", pk=pk)
    try:
        secret = services.rotate_secret(row, actor_of(request), if_match=posted(request))
    except InvalidInput as error:
        messages.error(request, f"Not rotated: {error}.")
        return redirect("channel", pk=pk)
    row.refresh_from_db()
    return _one(request, row, _filled(row), issued={"name": row.name, "secret": secret})


@admin_action
def test(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Channel, pk=pk)
    services.test_channel(row, actor_of(request))
    messages.success(request, f"A test notice for {row.name} is on its way; reload to see its outcome.")
    return redirect("channel", pk=pk)


@admin_action
def enable(request: HttpRequest, pk: int) -> HttpResponse:
    """Enable a disabled channel or disable an enabled one, by the button's value."""
    row = get_object_or_404(Channel, pk=pk)
    enabled = request.POST.get("enabled") == "1"
    services.set_enabled(row, enabled, actor_of(request), if_match=posted(request))
    messages.success(request, f"Channel {row.name} {'enabled' if enabled else 'disabled'}.")
    return redirect("channel", pk=pk)


@admin_action
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Channel, pk=pk)
    services.delete_channel(row, actor_of(request), if_match=posted(request))
    messages.success(request, f"Channel {row.name} deleted, with its log.")
    return redirect("channels")
