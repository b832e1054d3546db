"""The page Batches: operators see the batches of all keys, administrators cancel them."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.people.accounts.decorators import admin_action, operator_required
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_administer
from controlplane.traffic.batches import services
from controlplane.traffic.batches.models import Batch

SHOWN = 100


@operator_required
@require_GET
@never_cache
def batches(request: HttpRequest) -> HttpResponse:
    found = Batch.objects.select_related("key")[:SHOWN]
    shown = {"batches": found, "may_cancel": can_administer(request.user)}
    return render(request, "batches/batches.html", shown)


@admin_action
def cancel(request: HttpRequest, name: str) -> HttpResponse:
    row = get_object_or_404(Batch, name=name)
    if services.cancel_batch(row, actor_of(request)):
        messages.success(request, f"Batch {name} cancelled: what was answered is kept.")
    else:
        messages.info(request, f"Batch {name} had ended before.")
    return redirect("batches")
