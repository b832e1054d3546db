"""The fields of the draft editor, with values in the form in which people read and enter them. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.people.audit.differences import flatten
from controlplane.traffic.policies.metrics import LiveMetric
from fleet.counted import percent
from router.contract.values.fields import typed_flag, typed_number
from router.contract.values.json_value import Json, JsonObject
from router.policy.schema.document import parameters_of
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import STRATEGY_NAME
from router.policy.strategies import STRATEGIES, Strategy, title_of

SHARES = ("share",)
BARE = ("share", "ratio")  # units that are not written after a value
SECTIONS = {  # sections in the order of the page
    "classes": "Request classes",
    "strategy": "Strategy",
    "affinity": "Session affinity",
    "load": "Load",
    "cache": "Cache below the GPU",
    "flow": "Flow",
    "failure": "Failures",
    "admission": "Admission",
}


# Sections that are always open; the others are folded until they differ from live
BASIC = {
    *("classes.heavy_new_tokens", "classes.warm_hit_share", "classes.warm_new_tokens"),
    *(STRATEGY_NAME.path, "load.kv_usage_max"),
}


def named_value(path: str, value: Json, unit: str) -> str:
    """Format a value; strategies by their titles, as in the select."""
    if path == STRATEGY_NAME.path and value is not None:
        return title_of(str(value))
    return shown(value, unit)


@dataclass(frozen=True, slots=True)
class PolicyField:
    parameter: Parameter
    text: str  # text of the input: as entered, or else the draft's value
    live: str  # value of the live version, as text
    live_text: str  # value of the live version, in the form of an input's text
    error: str
    changed: bool  # True if the draft differs from the live version
    measured: LiveMetric | None

    @property
    def path(self) -> str:
        return self.parameter.path

    @property
    def in_view(self) -> bool:
        return self.path in BASIC or self.changed or bool(self.error)

    @property
    def id(self) -> str:
        return "f-" + self.parameter.path.replace(".", "-").replace("_", "-")

    @property
    def default(self) -> str:
        return named_value(self.path, self.parameter.default, self.parameter.unit)

    @property
    def allowed(self) -> str:
        """Format the range as 256 to 1,000,000 tokens, without "a whole number from", because the input accepts only
        numbers."""
        return self.parameter.allowed.removeprefix("a whole number from ").removeprefix("a number from ")

    @property
    def metric(self) -> str:
        return reading(self.measured.value, self.measured.unit) if self.measured else ""

    @property
    def choices(self) -> list[tuple[str, str]]:
        if self.parameter.kind == "bool":
            return [("true", "yes"), ("false", "no")]
        if self.parameter.path == STRATEGY_NAME.path:
            return [(name, strategy.title) for name, strategy in STRATEGIES.items()]
        return [(str(choice), str(choice)) for choice in self.parameter.choices]

    @property
    def is_choice(self) -> bool:
        return self.parameter.kind in ("choice", "bool")

    @property
    def step(self) -> str:
        return as_input(self.parameter.step or 1)


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    title: str
    fields: tuple[PolicyField, ...]
    hint: str = ""
    formula: str = ""

    @property
    def shown(self) -> list[PolicyField]:
        return [field for field in self.fields if field.in_view]

    @property
    def folded(self) -> list[PolicyField]:
        return [field for field in self.fields if not field.in_view]

    @property
    def changed(self) -> int:
        return sum(field.changed for field in self.fields)


def strategy_of(document: JsonObject) -> str:
    section = document.get("strategy")
    name = section.get("name") if isinstance(section, dict) else None
    return name if isinstance(name, str) and name in STRATEGIES else str(STRATEGY_NAME.default)


def overrides(posted: Mapping[str, str], current: str) -> dict[str, Json]:
    """Return the values of a posted form by path, without the fields of a strategy that was just deselected."""
    strategy = posted.get(STRATEGY_NAME.path, current)
    known = parameters_of(strategy if strategy in STRATEGIES else current)
    values = {p.path: typed(p, posted[p.path]) for p in known if p.path in posted}
    return {STRATEGY_NAME.path: strategy, **values} if STRATEGY_NAME.path in posted else values


def sections(
    draft: JsonObject,
    live: JsonObject,
    metrics: Mapping[str, LiveMetric],
    posted: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> tuple[Section, ...]:
    """Return the fields of the draft's strategy by section; `posted` is the text of a rejected form."""
    drafted, in_force = flatten(draft), flatten(live)
    posted, errors = posted or {}, errors or {}
    grouped: dict[str, list[PolicyField]] = {}
    for parameter in parameters_of(strategy_of(draft)):
        path = parameter.path
        value = drafted.get(path, parameter.default)
        field = PolicyField(
            parameter=parameter,
            text=posted.get(path, as_input(value)),
            live=named_value(path, in_force.get(path), parameter.unit),
            live_text=as_input(in_force.get(path)),
            error=errors.get(path, ""),
            changed=value != in_force.get(path),
            measured=metrics.get(parameter.metric),
        )
        grouped.setdefault(path.partition(".")[0], []).append(field)
    strategy = STRATEGIES[strategy_of(draft)]
    return tuple(_section(name, tuple(grouped[name]), strategy) for name in SECTIONS if name in grouped)


def _section(name: str, fields: tuple[PolicyField, ...], strategy: Strategy) -> Section:
    title = SECTIONS.get(name, name)
    return (
        Section(name, title, fields, strategy.summary, strategy.formula)
        if name == "strategy"
        else Section(name, title, fields)
    )


def pretty(document: JsonObject) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def shown(value: Json, unit: str = "") -> str:
    """Format a value: 20,000 tokens, 0.5, yes; a dash if it is missing."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        text = f"{value:,.6g}" if isinstance(value, float) and abs(value) < 1e6 else f"{value:,}"
        return f"{text} {unit}" if unit and unit not in BARE else text
    return str(value)


def reading(value: float | None, unit: str) -> str:
    """Format a live metric with three significant digits."""
    if value is None:
        return "no data"
    if unit in SHARES:
        return percent(value, ".3g")
    if unit == "ms" and value >= 1_000:
        return f"{value / 1000:.3g} s"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}"


def typed(parameter: Parameter, text: str) -> Json:
    """Return the entered text as a value of the document. Text that is not a number stays text, which `parse`
    rejects."""
    if parameter.kind == "bool":
        return typed_flag(text)
    if parameter.kind == "choice":
        text = text.strip()
        return next((choice for choice in parameter.choices if str(choice) == text), text)
    return typed_number(text)


def as_input(value: Json) -> str:
    """Return the value as text of an input, without thousands separators."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return "" if value is None else str(value)
