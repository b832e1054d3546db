"""Views that start an experiment or a matrix from the browser, with the fields and checks of the API."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.evidence.experiments import services
from controlplane.evidence.experiments.matrix.body import ARMS_MAX, RUNS_MAX
from controlplane.evidence.experiments.matrix.presets import presets
from controlplane.evidence.experiments.matrix.services import start_matrix
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.start.arms import json_of
from controlplane.evidence.experiments.start.body import ExperimentIn
from controlplane.evidence.experiments.start.curl import body_of, curl_of, example_body
from controlplane.evidence.experiments.start.form import (
    BODY_CHARS,
    LABELS,
    NUMBERS,
    OBJECTS,
    SEVERAL,
    Asked,
    arm_choices,
    arm_line,
    in_words,
    labelled,
    list_of,
    raw_body,
    read,
    size_of,
    with_room,
)
from controlplane.evidence.traces import library
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from controlplane.traffic.policies import selectors as policies
from fleet.selectors import pools, store_pool
from router.contract.values.json_value import Json, JsonObject
from router.contract.values.problem import InvalidInput, by_path

MORE = ("question", "pacing", "time_scale", *OBJECTS)  # fields folded on a new form
OFFERED = {"load_factor": (0.25, 0.5, 0.75, 1, 1.5, 2, 3), "seeds": (1, 2, 3, 4, 5)}  # other values can be entered
HINTS = {
    "load_factor": "Factors on the rate of arrivals, at most 10; others from 0.05 to 20.",
    "seeds": "At most 20 whole numbers. A seed sets arrivals that the trace leaves open.",
}


@require_http_methods(["GET", "POST"])
def start(request: HttpRequest) -> HttpResponseBase:
    if request.method == "GET":
        return _form(request, _prefilled(request), {})
    return _start(request)


@operator_required
def _start(request: HttpRequest) -> HttpResponse:
    raw = raw_body(request.POST)
    asked, problems = read(raw)
    if asked is None:
        return _form(request, raw, problems)
    try:
        return _started(request, asked)
    except InvalidInput as error:
        return _form(request, raw, by_path(error.problems))


def _started(request: HttpRequest, asked: Asked) -> HttpResponse:
    if isinstance(asked, ExperimentIn):
        made = services.start_experiment(asked, actor_of(request))
        messages.success(request, "Queued. It starts as soon as the experiments before it have ended.")
        return redirect("experiment", number=made.pk)
    matrix = start_matrix(asked, actor_of(request))
    messages.success(request, f"Queued: {matrix.cells.count()} cells.")
    return redirect("matrix", number=matrix.pk)


@require_POST
def curl(request: HttpRequest) -> HttpResponse:
    """Answer with the command and the runs for the form's current values, or with its problems."""
    raw = raw_body(request.POST)
    said = _said(request, raw, read(raw), dict(arm_choices()))
    return render(request, "experiments/_curl.html", {**said, "is_update": True})


def _said(
    request: HttpRequest, raw: JsonObject, found: tuple[Asked | None, Mapping[str, str]], choices: Mapping[str, str]
) -> dict[str, Any]:
    """Return the command and the runs, which do not need a name."""
    asked, problems = found
    unnamed = asked or read({**raw, "name": raw.get("name") or "unnamed"})[0]
    return {
        "curl": curl_of(request, asked) if asked else "",
        "size": size_of(unnamed, raw, choices) if unnamed else "",
        "faults": labelled(problems, raw, choices),
    }


def _prefilled(request: HttpRequest) -> JsonObject:
    """Return the fields of an earlier experiment with ?from=, of a body of the API with ?body=, of published arms with
    ?preset=, otherwise of an example.
    """
    earlier = request.GET.get("from", "")
    again = Experiment.objects.filter(pk=int(earlier)).first() if earlier.isdigit() and len(earlier) < 10 else None
    if again is not None and again.body:
        return with_room(dict(again.body))
    names = [pool.name for pool in pools()]
    example = example_body()
    pool = example["pool"] if example["pool"] in names or not names else names[0]
    if (preset := presets(store_pool()).get(request.GET.get("preset", ""))) is not None:
        load: JsonObject = {"traces": [example["trace"]], "loads": [0.5, 1, 2], "duration_s": 600}
        return {**load, "pool": pool, "name": "", "arms": preset[1]}
    return _given_body(request, pool) or {**example, "pool": pool}


def _given_body(request: HttpRequest, pool: Json) -> JsonObject:
    """Return the posted body; empty if it is invalid. It may omit the pool, because some links fit every fleet."""
    given = json_of(request.GET.get("body", "")[:BODY_CHARS])
    raw = {"pool": pool, **given} if isinstance(given, dict) else {}
    return raw if read(raw)[0] is not None else {}


def _form(request: HttpRequest, raw: JsonObject, problems: Mapping[str, str]) -> HttpResponse:
    arms, choices, found = list_of(raw, "arms"), dict(arm_choices()), read(raw)
    typed = [arm for arm in arms if arm not in list(choices)]
    summary, asked = labelled(problems, raw, choices), found[0]
    errors: dict[str, str] = {}
    for problem in summary:
        errors[problem.field] = "; ".join(filter(None, [errors.get(problem.field, ""), problem.beside]))
    context = {
        **_said(request, raw, found, choices),
        "values": {**(body_of(asked) if asked else {}), **({"mode": "twin"} if "traces" in raw else {}), **raw},
        "fields": {name: _plain(raw.get(name, ExperimentIn.model_fields[name].default)) for name in NUMBERS},
        "chosen_traces": _several(raw, "trace"),
        "ticks": [(name, LABELS[name], hint, errors.get(name, ""), *_ticks(raw, name)) for name, hint in HINTS.items()],
        "choices": [(choice, title, choice in arms) for choice, title in choices.items()],
        "order": [arm_line(arm) for arm in arms],
        "more_arms": "\n".join(map(arm_line, typed)),
        "in_words": in_words(typed, raw.get("pool")),
        "more_open": _is_more_given(raw) or any(problem.field in MORE for problem in summary),
        "objects": {name: arm_line(raw[name]) if raw.get(name) else "" for name in OBJECTS},
        "labels": LABELS,
        "problems": summary,
        "errors": errors,
        "presets": [(name, title) for name, (title, _) in presets(store_pool()).items()],
        "traces": library.entries(),
        "pools": list(pools()),
        "modes": list(MODES.values()),
        "runs_max": RUNS_MAX,
        "arms_max": ARMS_MAX,
        "policies": policies.policies(),
    }
    return render(request, "experiments/new.html", context, status=422 if problems else 200)


def _several(raw: JsonObject, name: str) -> list[Json]:
    """Return the values of a field that may have several in a matrix."""
    value = raw.get(SEVERAL.get(name, name), raw.get(name))
    if isinstance(value, list):
        return value
    return [{"load_factor": 1, "seeds": 1}.get(name, "") if value is None else value]


def _ticks(raw: JsonObject, name: str) -> tuple[list[tuple[str, bool]], str]:
    """Return (the offered values, each with whether it is selected; the other values as entered)."""
    given, offered = [_plain(one) for one in _several(raw, name)], [f"{value:g}" for value in OFFERED[name]]
    return [(text, text in given) for text in offered], ", ".join(text for text in given if text not in offered)


def _is_more_given(raw: JsonObject) -> bool:
    """Return whether a field under "More settings" differs from its value on a new form."""
    new = ExperimentIn.model_validate(example_body()).model_dump(mode="json", by_alias=True)
    return any(raw.get(name, new[name]) != new[name] for name in MORE)


def _plain(value: Any) -> str:
    """Return a number for an input, without separators."""
    return f"{value:g}" if isinstance(value, float) else str(value)
