"""The calibration of an instance on its page: its results, starting one, cancelling it."""

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone

from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.rows import find_instance
from controlplane.pages.fleet_pages.lifecycle_views import reason_of
from controlplane.people.accounts.decorators import operator_action
from controlplane.people.audit.services import actor_of
from fleet import jobs
from fleet.calibration import selectors
from fleet.calibration.describe import FittedLoad, describe_constants, describe_held_out, describe_load, fitted_loads
from fleet.calibration.services import SWEEP
from fleet.kinds import KINDS
from fleet.models import Calibration, Instance
from fleet.services import NotPossible


@dataclass(frozen=True, slots=True)
class ShownCalibration:
    last: Calibration | None  # the latest, whatever its outcome
    measured: Calibration | None  # the newest that finished successfully
    stale: tuple[str, ...]
    constants: list[tuple[str, str]]
    held_out: list[tuple[str, str]]  # errors of a fit to traffic, and the load on which it is based
    loads: list[FittedLoad]


def shown(instance: Instance) -> ShownCalibration | None:
    """Return the calibration; None for a kind that is never measured: a store, or an engine with a known law."""
    if not can_be_measured(instance):
        return None
    last, measured = selectors.last_asked(instance.name), selectors.newest(instance.name)
    if measured is None:
        return ShownCalibration(last, None, (), [], [], [])
    chunk = measured.limits["max_num_batched_tokens"]
    return ShownCalibration(
        last,
        measured,
        selectors.stale(measured, instance.pool, timezone.now()),
        describe_constants(measured.constants),
        [*describe_held_out(measured.held_out), *describe_load(measured.load_range)],
        fitted_loads(measured.points, measured.constants, chunk),
    )


def can_be_measured(instance: Instance) -> bool:
    kind = KINDS.get(instance.pool.kind)
    return kind is not None and kind.serves and not kind.simulated


@operator_action
def calibrate(request: HttpRequest, name: str, source: str = SWEEP) -> HttpResponse:
    find_instance(name)
    try:
        row = actions.calibrate(name, actor_of(request), reason_of(request), source=source)
    except NotPossible as error:
        messages.error(request, str(error))
    else:
        jobs.send(row)
        takes = f"it takes up to {row.seconds:g} s" if source == SWEEP else "it uses recorded requests"
        messages.success(request, f"{name}: calibration requested; {takes}.")
    return redirect("fleet-instance", name=name)


@operator_action
def cancel(request: HttpRequest, name: str) -> HttpResponse:
    try:
        actions.cancel_calibration(name, actor_of(request))
    except NotPossible as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{name}: calibration cancelled.")
    return redirect("fleet-instance", name=name)
