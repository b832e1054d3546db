"""Views of experiments: the list, one experiment, and cancelling it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec
from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from controlplane.evidence.experiments import provenance, selectors, services
from controlplane.evidence.experiments.matrix.summary import state_of
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.modes.mode import Mode
from controlplane.evidence.experiments.results import across
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.results.kv import gpu_map_of, kv_of
from controlplane.evidence.experiments.results.output import display, exports, forest
from controlplane.evidence.experiments.results.output.effects import arm_title, common_n, duration
from controlplane.evidence.experiments.results.output.near import LatencyPoint
from controlplane.evidence.experiments.results.output.report import COMPARISONS_NOTE, sentence
from controlplane.evidence.experiments.results.records import LATENCIES
from controlplane.evidence.experiments.results.types import ExperimentResults
from controlplane.evidence.experiments.start.body import ExperimentIn
from controlplane.evidence.experiments.start.curl import curl_of, example_body
from controlplane.evidence.traces.summary import HEAVY_NEW_TOKENS
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from fleet.counted import counted
from fleet.jobs import DONE, ENDED, STATUSES
from router.contract.values.problem import InvalidInput

LISTED = 100
MATRICES_LISTED = 20
LONGEST_MS = 1e12
BY_CACHE = f" (by an unbounded cache: heavy from {HEAVY_NEW_TOKENS:,} new tokens)"
KV_SHOWN = 64  # instances of a heat map; more rows are too thin to read


@require_GET
def experiment_list(request: HttpRequest) -> HttpResponse:
    return _list(request, "experiments/list.html")


@require_GET
def experiment_table(request: HttpRequest) -> HttpResponse:
    """Answer with only the table, for the live update."""
    return _list(request, "experiments/_table.html")


def _list(request: HttpRequest, template: str) -> HttpResponse:
    """List experiments; `q`, `status` and `mode` are parameters of the URL."""
    filters = {name: request.GET.get(name, "").strip() for name in ("q", "status", "mode")}
    filtered = any(filters.values())
    rows = [row_of(experiment) for experiment in _filtered(filters)[:LISTED]]
    matrices = [] if filtered else selectors.matrices()[:MATRICES_LISTED]
    is_first = not (rows or matrices or filtered)
    context = {
        "rows": rows,
        "matrices": [(matrix, state_of(list(matrix.cells.all()))) for matrix in matrices],
        "limit": LISTED,
        "example": curl_of(request, ExperimentIn.model_validate(example_body())) if is_first else "",
        "statuses": STATUSES,
        "modes": list(MODES),
        "filters": filters,
        "filtered": filtered,
    }
    return render(request, template, context)


def _filtered(filters: Mapping[str, str]) -> QuerySet[Experiment]:
    found = selectors.experiments().filter(matrix=None)
    if words := filters["q"]:
        found = found.filter(Q(name__icontains=words) | Q(trace__icontains=words) | Q(actor__icontains=words))
    exact = {name: filters[name] for name in ("status", "mode") if filters[name]}
    return found.filter(**exact)


@dataclass(frozen=True)
class ExperimentRow:
    """An experiment in the list, and at the top of its page."""

    experiment: Experiment
    mode: Mode
    arms: list[str]
    seeds: str
    progress: selectors.ExperimentProgress
    missing: int  # requests of a complete experiment that were not sent
    behind: str  # the reason why it is queued
    eta: str
    took: str
    active: bool


def row_of(experiment: Experiment) -> ExperimentRow:
    progress = selectors.progress_of(experiment)
    return ExperimentRow(
        experiment,
        MODES[experiment.mode],
        arms=[arm_title(arm.name) for arm in experiment.settled_arms],
        seeds=", ".join(map(str, experiment.seeds)),
        progress=progress,
        missing=progress.requests - progress.requests_done if experiment.status == DONE else 0,
        behind=behind(progress.queued_behind),
        eta="" if progress.eta_s is None else duration(progress.eta_s),
        took=duration(progress.took_s),
        active=experiment.status not in ENDED,
    )


def behind(queued_behind: int | None) -> str:
    if queued_behind is None:
        return ""
    return f"behind {counted(queued_behind, 'experiment')}" if queued_behind else "next to run"


@require_GET
def experiment_page(request: HttpRequest, number: int) -> HttpResponse:
    experiment = selectors.experiment(number)
    results = results_of(experiment)
    record, seed = provenance.record_of(experiment), _seed(request, experiment)
    context = {
        **_comparison(request, experiment, results),
        "expectations": [(row, sentence(row)) for row in results["expectations"]],
        "product": record and record.product,
        "repeats": record and record.repeats,
        "latencies": list(LATENCIES.items()),
        "requests_page": reverse("experiment-requests", args=[number]),
        "kv": msgspec.to_builtins(kv_of(experiment, "", seed, KV_SHOWN)),
        "gpu": msgspec.to_builtins(gpu_map_of(experiment, seed)),
        "shown_seed": seed,
        "curl": _curl(request, experiment),
    }
    return _with_runs(request, experiment, "experiments/experiment.html", context)


@require_GET
def experiment_progress(request: HttpRequest, number: int) -> HttpResponse:
    """Answer with the live part of the page of a running experiment. Once it has ended, the whole page is reloaded."""
    experiment = selectors.experiment(number)
    if experiment.status in ENDED:
        return HttpResponse(headers={"HX-Refresh": "true"})
    return _with_runs(request, experiment, "experiments/_progress.html", {})


def _with_runs(
    request: HttpRequest, experiment: Experiment, template: str, context: Mapping[str, object]
) -> HttpResponse:
    runs = list(experiment.runs.all())
    about = {
        **vars(row_of(experiment)),
        "about": exports.about(experiment),
        "runs": [_run_row(run, MODES[experiment.mode]) for run in runs],
        "partial": experiment.status != DONE and any(run.done for run in runs),
    }
    return render(request, template, {**about, **context})


@require_POST
@operator_required
def cancel(request: HttpRequest, number: int) -> HttpResponse:
    experiment = selectors.experiment(number)
    if services.cancel_experiment(experiment, actor_of(request)):
        messages.success(request, "Cancelled. The results of finished requests are kept.")
    else:
        messages.info(request, "The experiment had ended before.")
    return redirect("experiment", number=number)


@require_POST
@operator_required
def repeat(request: HttpRequest, number: int) -> HttpResponse:
    try:
        made = services.repeat_experiment(selectors.experiment(number), actor_of(request))
    except InvalidInput as error:
        messages.error(request, f"Not started: {error}")
        return redirect("experiment", number=number)
    messages.success(request, "Queued, with the recorded policies, fleets and requests.")
    return redirect("experiment", number=made.pk)


@dataclass(frozen=True, slots=True)
class RunRow:
    run: Run
    progress: str
    took: str
    partial: bool
    cells: list[str]  # cells for the columns of its mode
    classes: str
    policy: str


def _run_row(run: Run, mode: Mode) -> RunRow:
    took = (run.ended_at - run.started_at).total_seconds() if run.ended_at and run.started_at else None
    return RunRow(
        run,
        progress=f"{run.done:,}/{run.total:,}" if run.total else "–",
        took=duration(took),
        partial=run.status not in ("queued", "running", "done") and run.done > 0,
        cells=[column.text(run) for column in mode.columns],
        classes=", ".join(f"{name} {count:,}" for name, count in run.results.get("routed_classes", {}).items()),
        policy=", ".join(run.results.get("policy_versions", [])),
    )


def _curl(request: HttpRequest, experiment: Experiment) -> str:
    """Return the curl command; empty for a cell of a matrix with more arms than an experiment may have."""
    try:
        return curl_of(request, ExperimentIn.model_validate(experiment.body)) if experiment.body else ""
    except ValidationError:
        return ""


def _comparison(request: HttpRequest, experiment: Experiment, results: ExperimentResults) -> dict[str, Any]:
    """Return the comparison; `class` and `baseline` are parameters of the URL."""
    arms = experiment.settled_arms
    names = [arm.name for arm in arms]
    baseline = request.GET.get("baseline", "")
    baseline = baseline if baseline in names else names[0]
    request_class = request.GET.get("class", "")
    request_class = request_class if request_class in results["classes"] else "all"
    rows, n = common_n(display.comparison_rows(results, request_class, baseline))
    looks = display.arm_looks(arms, {arm["name"]: arm["partial"] for arm in results["arms"]}, n)
    title = f"Difference from {arm_title(baseline)}, class {request_class}"
    settings = display.settings_of([arm.document for arm in arms])
    fleet_settings = display.fleet_settings_of([provenance.fleet_of(experiment, name) for name in names])
    plot = forest.page_svg(forest.lines_of(results, request_class, baseline), title)
    return {
        "experiment": experiment,
        "results": results,
        "looks": looks,
        "names": names,
        "baseline": baseline,
        "request_class": request_class,
        "classes": display.class_counts(results),
        "rows": rows,
        "low_n": any(0 < (arm["classes"][request_class]["ok"] or 0) < 20 for arm in results["arms"]),
        "has_results": any(arm["classes"]["all"]["n"] for arm in results["arms"]),
        "caption": f"Class {request_class}{'' if request_class == 'all' else BY_CACHE}, {results['time']}; differences "
        f"from {arm_title(baseline)}",
        "note": COMPARISONS_NOTE if results["differences"] else "",
        "differing": [setting for setting in settings if setting.differs],
        "settings": settings,
        "fleet_differing": [setting for setting in fleet_settings if setting.differs],
        "fleet_settings": fleet_settings,
        "sentences": forest.sentences(results, request_class, baseline),
        "forest": mark_safe(plot),  # noqa: S308 - escaped there
        "chart": _chart(results, request_class, looks),
    }


def _chart(results: ExperimentResults, request_class: str, looks: Sequence[display.ArmLook]) -> dict[str, Any]:
    return {
        "time": results["time"],
        "class": request_class,
        "ecdf": results["ecdf"][request_class],
        "slo": results["slo"].get(request_class, results["slo"].get("all", {})),
        "arms": [
            {
                "name": look.name,
                "title": arm_title(look.name),
                "sign": look.sign,
                "colour": look.number - 1,
                "dash": look.dash,
                "marker": look.marker,
            }
            for look in looks
        ],
    }


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """Compare arms of several experiments: ?arm=12:lpwl&arm=13:lpwl."""
    asked = request.GET.getlist("arm")
    first = asked[0].partition(":")[0] if asked else ""
    like = Experiment.objects.filter(pk=int(first)).first() if first.isdigit() and len(first) < 10 else None
    try:
        compared, problem = _comparison(request, *across.compared(across.chosen(asked))), ""
    except InvalidInput as error:
        compared, problem = {}, str(error)
    context = {
        "chosen": asked,
        "candidates": across.candidates(like) if like else [],
        "kept": "".join(f"{urlencode({'arm': arm})}&" for arm in asked),
        "problem": problem if len(asked) > 1 else "",  # a single arm is not yet an error
        **compared,
    }
    return render(request, "experiments/compare.html", context, status=422 if context["problem"] else 200)


@require_GET
def requests_page(request: HttpRequest, number: int) -> HttpResponse:
    """Show the requests behind a point of a chart; missing or invalid choices are replaced by the first one."""
    experiment = selectors.experiment(number)
    classes = list(results_of(experiment)["classes"])
    arm = _choice(request, "arm", [arm.name for arm in experiment.settled_arms])
    point = LatencyPoint(_choice(request, "class", classes), _choice(request, "latency", list(LATENCIES)), _ms(request))
    context = {
        "experiment": experiment,
        "arm": arm,
        "point": point,
        "title": LATENCIES[point.latency],
        "arms": [arm.name for arm in experiment.settled_arms],
        "classes": classes,
        "latencies": list(LATENCIES.items()),
        "rows": exports.requests_near(experiment, arm, point),
    }
    return render(request, "experiments/requests.html", context)


def _choice(request: HttpRequest, name: str, choices: Sequence[str]) -> str:
    asked = request.GET.get(name, "")
    return asked if asked in choices else choices[0]


def _ms(request: HttpRequest) -> float | None:
    """Return the latency of the point; None asks for the slowest requests."""
    try:
        asked = float(request.GET.get("ms", ""))
    except ValueError:
        return None
    return asked if 0 <= asked < LONGEST_MS else None


def _seed(request: HttpRequest, experiment: Experiment) -> int:
    """Return `seed` of the URL."""
    asked = request.GET.get("seed", "")
    return int(next((seed for seed in experiment.seeds if str(seed) == asked), experiment.seeds[0]))
