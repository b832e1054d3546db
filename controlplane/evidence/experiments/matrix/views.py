"""Views of matrices: the heat table, resume and cancel."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from controlplane.evidence.experiments import selectors
from controlplane.evidence.experiments.matrix import summary
from controlplane.evidence.experiments.matrix.services import AGAIN, cancel_matrix, resume_matrix
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.summarize import CLASSES
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from fleet.jobs import ENDED


@require_GET
def page(request: HttpRequest, number: int) -> HttpResponse:
    """Show a matrix; `class` and `metric` come from the URL."""
    matrix = selectors.matrix(number)
    cells = list(matrix.cells.all())
    request_class, metric = request.GET.get("class", ""), request.GET.get("metric", "")
    request_class = request_class if request_class in CLASSES else "all"
    shown_metrics = [each for each in METRICS.values() if each.better and (each.per_class or request_class == "all")]
    metric = metric if metric in {each.key for each in shown_metrics} else "ttft_p90_ms"
    context = {
        "matrix": matrix,
        "cells": cells,
        **vars(summary.state_of(cells)),
        "active": any(cell.status not in ENDED for cell in cells),
        "again": sum(cell.status in AGAIN for cell in cells),
        "classes": CLASSES,
        "request_class": request_class,
        "metrics": shown_metrics,
        "metric": METRICS[metric],
        "has_values": any(cell.summary for cell in cells),
        "rows": summary.heat(cells, request_class, metric),
    }
    return render(request, "experiments/matrix.html", context)


@require_POST
@operator_required
def cancel(request: HttpRequest, number: int) -> HttpResponse:
    stopped = cancel_matrix(selectors.matrix(number), actor_of(request))
    messages.success(request, f"Cancelled: {stopped} cells. Finished runs are kept.")
    return redirect("matrix", number=number)


@require_POST
@operator_required
def resume(request: HttpRequest, number: int) -> HttpResponse:
    queued = resume_matrix(selectors.matrix(number), actor_of(request))
    messages.success(request, f"Queued again: {queued} cells, without their finished runs.")
    return redirect("matrix", number=number)
