"""Views of matrices: the form, the heat table, resume and cancel."""

import json

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.html import escape
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from pydantic import ValidationError

from controlplane.common.input_errors import problems_of
from controlplane.evidence.experiments import selectors
from controlplane.evidence.experiments.matrix import summary
from controlplane.evidence.experiments.matrix.body import ARMS_MAX, RUNS_MAX, MatrixIn
from controlplane.evidence.experiments.matrix.presets import presets
from controlplane.evidence.experiments.matrix.services import AGAIN, cancel_matrix, resume_matrix, start_matrix
from controlplane.evidence.experiments.models import Matrix
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.summarize import CLASSES
from controlplane.evidence.experiments.start.arms import json_of
from controlplane.evidence.experiments.start.curl import example_body
from controlplane.evidence.experiments.start.views import (
    arm_choices,
    arm_line,
    chosen_arms,
    in_words,
    list_of,
    typed_numbers,
    unless_long,
)
from controlplane.evidence.traces import library
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from fleet.counted import counted
from fleet.jobs import ENDED
from fleet.selectors import pools, store_pool
from router.contract.values.fields import typed_number
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, by_path

LABELS = {
    "name": "Name",
    "question": "Question",
    "traces": "Traces",
    "loads": "Load factors",
    "pool": "Pool",
    "duration_s": "Window",
    "seeds": "Seeds",
    "arms": "Arms",
    "slo": "SLO",
    "expect": "Expectations",
}

OFFERED = {"loads": (0.25, 0.5, 0.75, 1, 1.5, 2, 3), "seeds": (1, 2, 3, 4, 5)}  # other values are typed
HINTS = {
    "loads": "Factors on the rate of arrivals, at most 10; others from 0.05 to 20.",
    "seeds": "At most 20; each plays every cell once.",
}


def find(number: int) -> Matrix:
    found = selectors.matrices(with_values=True).filter(pk=number).first()
    if found is None:
        raise Http404(f"there is no matrix {number}")
    return found


@require_GET
def page(request: HttpRequest, number: int) -> HttpResponse:
    """Show a matrix; `class` and `metric` come from the URL."""
    matrix = find(number)
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


@require_http_methods(["GET", "POST"])
def start(request: HttpRequest) -> HttpResponseBase:
    if request.method == "POST":
        return _start(request)
    preset, offered = request.GET.get("preset", ""), presets(store_pool())
    arms = offered[preset][1] if preset in offered else example_body()["arms"]
    example = pools().filter(name=example_body()["pool"]).first() or pools().first()
    raw: JsonObject = {
        "name": "",
        "traces": ["agentic-demo"],
        "loads": [0.5, 1, 2],
        "arms": arms,
        "duration_s": 600,
        "seeds": [1],
    }
    return _form(request, raw | {"pool": example.name if example else ""}, {})


@operator_required
def _start(request: HttpRequest) -> HttpResponse:
    raw = raw_body(request)
    if request.POST.get("step") == "size":
        return HttpResponse(escape(_size(raw)))
    try:
        made = start_matrix(MatrixIn.model_validate(raw), actor_of(request))
    except ValidationError as error:
        problems = by_path(problems_of(error))
    except InvalidInput as error:
        problems = by_path(error.problems)
    else:
        messages.success(request, f"Queued: {made.cells.count()} cells.")
        return redirect("matrix", number=made.pk)
    return _form(request, raw, problems)


def raw_body(request: HttpRequest) -> JsonObject:
    """Return the form as a body of the API."""
    form = request.POST

    def text(name: str) -> str:
        return str(form.get(name, "")).strip()

    raw: JsonObject = {name: text(name) for name in ("name", "question", "pool") if text(name)}
    raw["traces"] = [*form.getlist("traces")]
    raw |= {name: unless_long(" ".join(form.getlist(name)), typed_numbers) for name in OFFERED}
    raw["duration_s"] = typed_number(text("duration_s"))
    raw["arms"] = chosen_arms(form, text("arms"))
    return raw | {name: unless_long(text(name), json_of) for name in ("slo", "expect") if text(name)}


def _size(raw: JsonObject) -> str:
    """Say how many runs the form asks for, and what its baseline is: 3 arms × 1 seed × 2 traces × 3 loads = 18 runs in
    6 cells; the baseline is lpwl."""
    try:
        asked = MatrixIn.model_validate(raw | {"name": raw.get("name") or "unnamed"})
    except ValidationError as error:
        path, message = next(iter(by_path(problems_of(error)).items()))
        return f"{LABELS.get(path.partition('.')[0], path)}: {message}"
    if problem := asked.too_many:
        return f"{LABELS[problem.path]}: {problem.text}"
    first = list_of(raw, "arms")[:1]
    baseline = next((name for name, _ in in_words(first, raw.get("pool"))), arm_line(first[0]))
    parts = {"arm": len(asked.arms), "seed": len(asked.seeds), "trace": len(asked.traces), "load": len(asked.loads)}
    product = " × ".join(counted(number, name) for name, number in parts.items())
    cells = counted(len(asked.traces) * len(asked.loads), "cell")
    return f"{product} = {counted(asked.runs, 'run')} in {cells}; the baseline is {baseline}"


def _numbers(raw: JsonObject, name: str) -> tuple[list[tuple[str, bool]], str]:
    """Return (offered values, each with whether it is chosen; the others as typed)."""
    given = [str(int(one)) if isinstance(one, float) and one.is_integer() else str(one) for one in list_of(raw, name)]
    offered = [f"{value:g}" for value in OFFERED[name]]
    return [(text, text in given) for text in offered], ", ".join(text for text in given if text not in offered)


def _form(request: HttpRequest, raw: JsonObject, problems: dict[str, str]) -> HttpResponse:
    choices, arms = arm_choices(), list_of(raw, "arms")
    named = [choice for choice, _ in choices]
    listed = [(path.partition(".")[0], path, message) for path, message in problems.items()]
    errors = {field: "; ".join(m for f, _, m in listed if f == field) for field, _, _ in listed}
    context = {
        "raw": raw,
        "numbers": [
            (name, LABELS[name], hint, errors.get(name, ""), *_numbers(raw, name)) for name, hint in HINTS.items()
        ],
        "choices": [(choice, title, choice in arms) for choice, title in choices],
        "order": [arm_line(arm) for arm in arms],
        "arms": "\n".join(arm_line(arm) for arm in arms if arm not in named),
        "in_words": in_words([arm for arm in arms if arm not in named], raw.get("pool")),
        "size": _size(raw),
        "objects": {name: json.dumps(raw[name]) if raw.get(name) else "" for name in ("slo", "expect")},
        "labels": LABELS,
        "problems": [(LABELS.get(field, field), field, path, message) for field, path, message in listed],
        "errors": errors,
        "presets": [(name, title) for name, (title, _) in presets(store_pool()).items()],
        "traces": library.entries(),
        "pools": list(pools()),
        "runs_max": RUNS_MAX,
        "arms_max": ARMS_MAX,
    }
    return render(request, "experiments/matrix_new.html", context, status=422 if problems else 200)


@require_POST
@operator_required
def cancel(request: HttpRequest, number: int) -> HttpResponse:
    stopped = cancel_matrix(find(number), actor_of(request))
    messages.success(request, f"Cancelled: {stopped} cells. Finished runs are kept.")
    return redirect("matrix", number=number)


@require_POST
@operator_required
def resume(request: HttpRequest, number: int) -> HttpResponse:
    queued = resume_matrix(find(number), actor_of(request))
    messages.success(request, f"Queued again: {queued} cells, without their finished runs.")
    return redirect("matrix", number=number)
