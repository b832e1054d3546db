"""Views that start an experiment from the browser, with the API's fields and checks."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST
from pydantic import ValidationError

from controlplane.common.input_errors import problems_of
from controlplane.evidence.experiments import services
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.results.output.display import policy_of
from controlplane.evidence.experiments.start.arms import json_of, resolve
from controlplane.evidence.experiments.start.body import ArmIn, ExperimentIn
from controlplane.evidence.experiments.start.curl import body_of, curl_of, example_body
from controlplane.evidence.traces import library
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from controlplane.traffic.policies import selectors as policies
from fleet.selectors import pools
from router.contract.values.fields import typed_number
from router.contract.values.json_value import Json, JsonObject
from router.contract.values.problem import InvalidInput, by_path
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES

TEXTS = ("name", "question", "trace", "pool", "mode", "pacing")
OBJECTS = ("expect", "slo")  # fields typed as JSON
MORE = ("question", "pacing", "load_factor", "seeds", "time_scale", *OBJECTS)  # fields folded on a new form
BODY_CHARS = 8_000  # longest ?body=, as a URL may be no longer
FIELD_CHARS = 32_000  # longest field of several values
NUMBERS = ("duration_s", "time_scale", "load_factor")
LABELS = {
    "name": "Name",
    "question": "Question",
    "trace": "Trace",
    "duration_s": "Window",
    "pacing": "Pacing",
    "load_factor": "Load factor",
    "seeds": "Seeds",
    "pool": "Pool",
    "mode": "Mode",
    "time_scale": "Time scale",
    "arms": "Arms",
    "more_arms": "More arms",
    "expect": "Expectations",
    "slo": "SLO",
}


# Says typed arms as the pages of results do, so that a form shows what its keys mean


def in_words(arms: Sequence[Json], pool: Json) -> list[tuple[str, str]]:
    """Return (name, policy with its changes) of the arms, whose fleets are not checked; empty if one cannot be read."""
    try:
        asked = [arm if isinstance(arm, str) else ArmIn.model_validate(arm) for arm in arms]
    except ValidationError:
        return []
    known = pools().filter(name=str(pool)).first()
    found, _ = resolve(asked, services.policy_version, known.policy if known else "", lambda fleet, path: [])
    return [(arm.name, policy_of(arm)) for arm in found]


@dataclass(frozen=True, slots=True)
class LabelledProblem:
    """A problem as the page shows it."""

    field: str  # field of the form
    part: str  # part of the field; empty for all of it
    message: str

    @property
    def label(self) -> str:
        return ", ".join(word for word in (LABELS.get(self.field, self.field), self.part) if word)

    @property
    def beside(self) -> str:
        """The message beside the field, without its label."""
        return f"{self.part}: {self.message}" if self.part else self.message


def labelled(problems: Mapping[str, str], raw: JsonObject, choices: Collection[str]) -> list[LabelledProblem]:
    """Label problems by path, of a body whose arms are the ticked `choices` and the typed lines."""
    return [_labelled(path.split("."), message, raw, choices) for path, message in problems.items()]


def _labelled(path: Sequence[str], message: str, raw: JsonObject, choices: Collection[str]) -> LabelledProblem:
    name, *rest = path
    items = raw.get(name)
    if not rest or not rest[0].isdigit() or not isinstance(items, list) or int(rest[0]) >= len(items):
        return LabelledProblem(name, ".".join(rest), message)
    at = int(rest[0])
    item, words = items[at], [_within(".".join(rest[1:]))]
    if name != "arms":
        return LabelledProblem(name, _joined(item if isinstance(item, str) else f"number {at + 1}", *words), message)
    if isinstance(item, str) and item in choices:
        return LabelledProblem("arms", _joined(item, *words), message)
    ticked = sum(isinstance(other, str) and other in choices for other in items[:at])
    return LabelledProblem("more_arms", _joined(f"line {at - ticked + 1}", *words), message)


def _within(path: str) -> str:
    """Return the title of a policy parameter; any other key as typed."""
    changed = path.removeprefix("overrides.")
    return PARAMETERS[changed].title if changed in PARAMETERS else changed


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)


@require_http_methods(["GET", "POST"])
def start(request: HttpRequest) -> HttpResponseBase:
    if request.method == "GET":
        return _form(request, _prefilled(request), {})
    return _start(request)


@operator_required
def _start(request: HttpRequest) -> HttpResponse:
    raw = raw_body(request.POST)
    try:
        made = services.start_experiment(ExperimentIn.model_validate(raw), actor_of(request))
    except ValidationError as error:
        return _form(request, raw, by_path(problems_of(error)))
    except InvalidInput as error:
        return _form(request, raw, by_path(error.problems))
    messages.success(request, "Queued. It starts as soon as the experiments before it have ended.")
    return redirect("experiment", number=made.pk)


@require_POST
def curl(request: HttpRequest) -> HttpResponse:
    """Answer with the command for the form as it is, or the form's problems."""
    raw = raw_body(request.POST)
    try:
        command, problems = curl_of(request, ExperimentIn.model_validate(raw)), []
    except ValidationError as error:
        command, problems = "", labelled(by_path(problems_of(error)), raw, dict(arm_choices()))
    return render(request, "experiments/_curl.html", {"curl": command, "problems": problems})


def raw_body(form: QueryDict) -> JsonObject:
    """Return the form as a body of the API. An unreadable value stays text, which the check rejects with its path. A
    page that offers an experiment sends the whole body in one field."""
    if whole := _text(form, "body"):
        return given if isinstance(given := json_of(whole[:BODY_CHARS]), dict) else {}
    raw: JsonObject = {name: text for name in TEXTS if (text := _text(form, name))}
    raw |= {name: typed_number(text) for name in NUMBERS if (text := _text(form, name))}
    raw["seeds"] = unless_long(_text(form, "seeds"), typed_numbers)
    raw["arms"] = chosen_arms(form, _text(form, "more_arms"))
    raw |= {name: unless_long(text, json_of) for name in OBJECTS if (text := _text(form, name))}
    return raw


def chosen_arms(form: QueryDict, typed: str) -> Any:
    """Return the ticked and the typed arms: those with which the form was opened come first and keep their order, as
    the first arm is the baseline."""
    arms = unless_long(typed, typed_arms)
    if not isinstance(arms, list):
        return arms
    places = {line: place for place, line in enumerate(form.getlist("order"))}
    return sorted([*form.getlist("arm"), *arms], key=lambda arm: places.get(arm_line(arm), len(places)))


def unless_long(text: str, read: Callable[[str], Any]) -> Any:
    """Return what the text says; itself if reading it, and saying all that is wrong with it, would take long."""
    return read(text) if len(text) <= FIELD_CHARS else text


def typed_numbers(text: str) -> list[Any]:
    return [typed_number(word) for word in text.replace(",", " ").split()]


def typed_arms(text: str) -> list[Any]:
    return [_arm(line.strip()) for line in text.splitlines() if line.strip()]


def _text(form: QueryDict, name: str) -> str:
    return str(form.get(name, "")).strip()


def _arm(line: str) -> Any:
    return json_of(line) if line.startswith("{") else line


def _prefilled(request: HttpRequest) -> JsonObject:
    """Return the fields of an earlier experiment with ?from=, of a body of the API with ?body=, else of an example."""
    earlier = request.GET.get("from", "")
    again = Experiment.objects.filter(pk=int(earlier)).first() if earlier.isdigit() and len(earlier) < 10 else None
    if again is not None and again.body:
        return dict(again.body)
    names = [pool.name for pool in pools()]
    example = example_body()
    pool = example["pool"] if example["pool"] in names or not names else names[0]
    return _given_body(request, pool) or {**example, "pool": pool}


def _given_body(request: HttpRequest, pool: Json) -> JsonObject:
    """Return the posted body; empty if it is not valid. It may leave out the pool, as do links that fit every fleet."""
    given = json_of(request.GET.get("body", "")[:BODY_CHARS])
    if not isinstance(given, dict):
        return {}
    raw = {"pool": pool, **given}
    try:
        ExperimentIn.model_validate(raw)
    except ValidationError:
        return {}
    return raw


def _form(request: HttpRequest, raw: JsonObject, problems: Mapping[str, str]) -> HttpResponse:
    arms = list_of(raw, "arms")
    choices = arm_choices()
    summary = labelled(problems, raw, dict(choices))
    try:
        asked = ExperimentIn.model_validate(raw)
        command, values = curl_of(request, asked), {**body_of(asked), **raw}
    except ValidationError:
        command, values = "", raw
    context = {
        "values": {**values, "seeds": ", ".join(map(str, list_of({"seeds": [1], **values}, "seeds")))},
        "numbers": {name: _plain(values.get(name, ExperimentIn.model_fields[name].default)) for name in NUMBERS},
        "choices": [(choice, title, choice in arms) for choice, title in choices],
        "order": [arm_line(arm) for arm in arms],
        "more_arms": "\n".join(arm_line(arm) for arm in arms if arm not in [choice for choice, _ in choices]),
        "in_words": in_words([arm for arm in arms if arm not in [choice for choice, _ in choices]], raw.get("pool")),
        "more_open": _is_more_given(raw) or any(problem.field in MORE for problem in summary),
        "objects": {name: arm_line(raw[name]) if raw.get(name) else "" for name in OBJECTS},
        "labels": LABELS,
        "problems": summary,
        "field_errors": _by_field(summary),
        "traces": library.entries(),
        "pools": list(pools()),
        "modes": list(MODES.values()),
        "curl": command,
    }
    return render(request, "experiments/new.html", context, status=422 if problems else 200)


def _is_more_given(raw: JsonObject) -> bool:
    """Tell whether a field of "More settings" differs from that of a new form."""
    new = ExperimentIn.model_validate(example_body()).model_dump(mode="json", by_alias=True)
    return any(raw.get(name, new[name]) != new[name] for name in MORE)


def list_of(raw: JsonObject, name: str) -> list[Json]:
    """Return the list under this name; empty if there is none."""
    return found if isinstance(found := raw.get(name), list) else []


def _plain(value: Any) -> str:
    """Return a number for an input, without separators."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def arm_line(arm: Any) -> str:
    return arm if isinstance(arm, str) else json.dumps(arm)


def arm_choices() -> list[tuple[str, str]]:
    """Return the strategies by their default documents, then the live version of each policy."""
    strategies = [(name, strategy.title) for name, strategy in STRATEGIES.items()]
    live = [
        (f"{policy.name}@{policies.live_version(policy).number}", f"Policy {policy.name}, live")
        for policy in policies.policies()
    ]
    return [*strategies, *live]


def _by_field(problems: Iterable[LabelledProblem]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for problem in problems:
        found.setdefault(problem.field, []).append(problem.beside)
    return {field: "; ".join(messages) for field, messages in found.items()}
