"""The form that starts an experiment or a matrix: its input as a body of the API, and the field of each problem."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict
from pydantic import ValidationError

from controlplane.common.input_errors import problems_of
from controlplane.evidence.experiments import services
from controlplane.evidence.experiments.matrix.body import MatrixIn
from controlplane.evidence.experiments.results.output.display import policy_of
from controlplane.evidence.experiments.start.arms import json_of, resolve
from controlplane.evidence.experiments.start.body import ARMS_MAX, ArmIn, ExperimentIn
from controlplane.traffic.policies import selectors as policies
from fleet.counted import counted
from fleet.selectors import pools
from router.contract.values.fields import typed_number
from router.contract.values.json_value import Json, JsonObject
from router.contract.values.problem import InvalidInput, Problem, by_path
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES

TEXTS = ("name", "question", "pool", "mode", "pacing")
OBJECTS = ("expect", "slo")  # fields entered as JSON
NUMBERS = ("duration_s", "time_scale")
SEVERAL = {"trace": "traces", "load_factor": "loads"}  # field → its name in a matrix, which has several values
BODY_CHARS = 8_000  # longest ?body=, because the length of a URL is limited
FIELD_CHARS = 32_000  # longest field of several values
LABELS = {
    "name": "Name",
    "question": "Question",
    "trace": "Traces",
    "duration_s": "Window",
    "pacing": "Pacing",
    "load_factor": "Load factors",
    "seeds": "Seeds",
    "pool": "Pool",
    "mode": "Mode",
    "time_scale": "Time scale",
    "arms": "Arms",
    "more_arms": "More arms",
    "expect": "Expectations",
    "slo": "SLO",
}
SIMULATED = "several traces, several load factors and more than 6 arms are a matrix, which is simulated"


@dataclass(frozen=True, slots=True)
class LabelledProblem:
    """A problem in the form in which the page shows it."""

    field: str  # field of the form
    part: str  # part of the field; empty for all of it
    message: str

    @property
    def label(self) -> str:
        return ", ".join(word for word in (LABELS.get(self.field, self.field), self.part) if word)

    @property
    def beside(self) -> str:
        """Return the message for display beside the field, without the field's label."""
        return f"{self.part}: {self.message}" if self.part else self.message


def labelled(problems: Mapping[str, str], raw: JsonObject, choices: Collection[str]) -> list[LabelledProblem]:
    """Label problems by path, for a body whose arms are the selected `choices` and the entered lines."""
    return [_labelled(path.split("."), message, raw, choices) for path, message in problems.items()]


def _labelled(path: Sequence[str], message: str, raw: JsonObject, choices: Collection[str]) -> LabelledProblem:
    name, *rest = path
    items = raw.get(name)
    field = next((field for field, several in SEVERAL.items() if several == name), name)
    if not rest or not rest[0].isdigit() or not isinstance(items, list) or int(rest[0]) >= len(items):
        return LabelledProblem(field, ".".join(rest), message)
    at = int(rest[0])
    item, words = items[at], [_within(".".join(rest[1:]))]
    if name != "arms":
        return LabelledProblem(field, _joined(item if isinstance(item, str) else f"number {at + 1}", *words), message)
    if isinstance(item, str) and item in choices:
        return LabelledProblem("arms", _joined(item, *words), message)
    ticked = sum(isinstance(other, str) and other in choices for other in items[:at])
    return LabelledProblem("more_arms", _joined(f"line {at - ticked + 1}", *words), message)


def _within(path: str) -> str:
    """Return the title of a policy parameter; any other key unchanged."""
    changed = path.removeprefix("overrides.")
    return PARAMETERS[changed].title if changed in PARAMETERS else changed


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)


def raw_body(form: QueryDict) -> JsonObject:
    """Return the form as a body of the API: the body of a matrix, if there are several traces, several loads or many
    arms. An unreadable value stays text, so that the check rejects it with its path. A page that offers an experiment
    sends the whole body in one field."""
    if whole := _text(form, "body"):
        return given if isinstance(given := json_of(whole[:BODY_CHARS]), dict) else {}
    raw: JsonObject = {name: text for name in TEXTS if (text := _text(form, name))}
    raw |= {name: typed_number(text) for name in NUMBERS if (text := _text(form, name))}
    raw["seeds"] = _numbers(form, "seeds")
    raw["arms"] = _chosen_arms(form)
    raw |= {name: _unless_long(text, json_of) for name in OBJECTS if (text := _text(form, name))}
    traces, loads = form.getlist("trace"), _numbers(form, "load_factor")
    if isinstance(loads, str) or max(len(traces), len(loads)) > 1:
        return raw | {"traces": [*traces], "loads": loads or [1.0]}
    single = dict(zip(("trace",), traces, strict=False)) | dict(zip(("load_factor",), loads, strict=False))
    return with_room(raw | single)


def with_room(raw: JsonObject) -> JsonObject:
    """Return the body of an experiment or, for more arms than an experiment may have, of a matrix of one cell."""
    if len(list_of(raw, "arms")) <= ARMS_MAX:
        return raw
    rest = {name: value for name, value in raw.items() if name not in SEVERAL}
    return rest | {"traces": [raw["trace"]] if "trace" in raw else [], "loads": [raw.get("load_factor", 1.0)]}


def _numbers(form: QueryDict, name: str) -> Any:
    return _unless_long(" ".join(form.getlist(name)), _typed_numbers)


def _typed_numbers(text: str) -> list[Any]:
    return [typed_number(word) for word in text.replace(",", " ").split()]


def _chosen_arms(form: QueryDict) -> Any:
    """Return the selected and the entered arms. Those with which the form was opened are first and keep their order,
    because the first arm is the baseline."""
    arms = _unless_long(_text(form, "more_arms"), _typed_arms)
    if not isinstance(arms, list):
        return arms
    places = {line: place for place, line in enumerate(form.getlist("order"))}
    return sorted([*form.getlist("arm"), *arms], key=lambda arm: places.get(arm_line(arm), len(places)))


def _typed_arms(text: str) -> list[Any]:
    lines = (line.strip() for line in text.splitlines())
    return [json_of(line) if line.startswith("{") else line for line in lines if line]


def _unless_long(text: str, read: Callable[[str], Any]) -> Any:
    """Return the value of the text, or the text itself if it would take long to parse it and list its errors."""
    return read(text) if len(text) <= FIELD_CHARS else text


def _text(form: QueryDict, name: str) -> str:
    return str(form.get(name, "")).strip()


Asked = ExperimentIn | MatrixIn


def read(raw: JsonObject) -> tuple[Asked | None, dict[str, str]]:
    """Return (the requested body or None, its problems by path)."""
    try:
        return _asked(raw), {}
    except ValidationError as error:
        return None, by_path(problems_of(error))
    except InvalidInput as error:
        return None, by_path(error.problems)


def _asked(raw: JsonObject) -> Asked:
    if "traces" not in raw:
        return ExperimentIn.model_validate(raw)
    body = {"mode": "twin", "time_scale": 1} | raw
    only = (("mode", body.pop("mode"), "twin"), ("time_scale", body.pop("time_scale"), 1))
    wrong = [Problem(name, value, SIMULATED, str(allowed)) for name, value, allowed in only if value != allowed]
    if wrong:
        raise InvalidInput(problems=wrong)
    asked = MatrixIn.model_validate(body)
    if asked.too_many:
        raise InvalidInput(problems=[asked.too_many])
    return asked


def size_of(asked: Asked, raw: JsonObject, choices: Mapping[str, str]) -> str:
    """Describe the number of runs and the baseline: 3 arms × 1 seed × 2 traces × 3 loads = 18 runs in 6 cells; the
    baseline is Least prefill work left.
    """
    parts = {"arm": len(asked.arms), "seed": len(asked.seeds)}
    cells = ""
    if isinstance(asked, MatrixIn):
        parts |= {"trace": len(asked.traces), "load": len(asked.loads)}
        cells = f" in {counted(len(asked.traces) * len(asked.loads), 'cell')}"
    first = list_of(raw, "arms")[:1]
    line = arm_line(first[0])
    baseline = choices.get(line) or next((name for name, _ in in_words(first, raw.get("pool"))), line)
    product = " × ".join(counted(number, name) for name, number in parts.items())
    return f"{product} = {counted(math.prod(parts.values()), 'run')}{cells}; the baseline is {baseline}"


def in_words(arms: Sequence[Json], pool: Json) -> list[tuple[str, str]]:
    """Describe the arms: (name, policy with its changes), without checking their fleets; empty if an arm cannot be
    read.
    """
    try:
        asked = [arm if isinstance(arm, str) else ArmIn.model_validate(arm) for arm in arms]
    except ValidationError:
        return []
    known = pools().filter(name=str(pool)).first()
    found, _ = resolve(asked, services.policy_version, known.policy if known else "", lambda fleet, path: [])
    return [(arm.name, policy_of(arm)) for arm in found]


def list_of(raw: JsonObject, name: str) -> list[Json]:
    """Return the list under the name; empty if there is none."""
    return found if isinstance(found := raw.get(name), list) else []


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
