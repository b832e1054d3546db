"""The form that starts a tuning: its fields and their errors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import QueryDict

from controlplane.evidence.tuning import services
from controlplane.evidence.tuning.display import GOALS
from controlplane.evidence.tuning.goals import OBJECTIVES
from controlplane.evidence.tuning.space import Range, by_default, searchable, space_of, suggested
from router.contract.values.fields import Field, accept, number, typed_number
from router.contract.values.problem import InvalidInput, Problem, by_path
from router.policy.schema.parameter import Parameter
from router.policy.types import ParsedPolicy as Document

SCALES = (("", "automatic"), ("linear", "linear"), ("log", "logarithmic"))
_OF_RANGE = re.compile(r"parameters\.(\d+)\.(\w+)")


def _typed(field: Field) -> Field:
    """Return the field as people type it: a share in whole percent."""
    if field.unit != "share":
        return field
    low, high = (round(100 * limit) for limit in field.range)
    default = round(100 * field.default)
    return replace(field, title=f"{field.title}, %", kind="int", default=default, range=(low, high), unit="%")


NUMBERS = tuple(map(_typed, services.FIELDS.values()))


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter of the form."""

    parameter: Parameter
    live: Any
    checked: bool
    values: Mapping[str, str]  # low, high, step, scale as typed
    errors: Mapping[str, str]

    @property
    def live_text(self) -> str:
        return number(self.live) if self.has_bounds else str(self.live)

    @property
    def has_bounds(self) -> bool:
        return self.parameter.kind in ("int", "float")


class TuningForm:
    scales = SCALES

    def __init__(self, strategy: str, live: Document, typed: QueryDict | None = None) -> None:
        self.strategy, self._live, self._typed = strategy, live, typed
        self._parameters = searchable(strategy)
        self._problems: list[Problem] = []
        self.message = ""

    @property
    def chosen(self) -> Mapping[str, str]:
        """The pool and trace as typed."""
        return {} if self._typed is None else {name: self._typed.get(name, "") for name in ("pool", "trace")}

    def asked(self) -> services.AskedTuning:
        """Return the request. InvalidInput names every wrong field."""
        numbers = {field.name: self._number(field) for field in NUMBERS}
        ranges = [self._range(path) for path in self._checked()]
        objectives = self._objectives()
        if not objectives:
            self._refuse("objectives", "", "choose at least one objective", ", ".join(OBJECTIVES))
        if not ranges:
            self._refuse("parameters", "", "choose at least one parameter")
        elif not self._problems:
            self._check(ranges)
        if self._problems:
            raise InvalidInput("the tuning was not started", tuple(self._problems))
        given = self.chosen
        return services.AskedTuning(
            pool=given.get("pool", ""),
            trace=given.get("trace", ""),
            parameters=ranges,
            objectives=objectives,
            **{name: value for name, value in numbers.items() if value is not None},
        )

    def refuse(self, error: InvalidInput) -> None:
        """Show the error beside its fields."""
        self.message = str(error)
        self._problems = [self._beside_its_field(problem) for problem in error.problems]

    def errors(self) -> dict[str, str]:
        return by_path(self._problems)

    def summary(self) -> list[tuple[str, str]]:
        """Return (title of the field or empty, message)."""
        rows = [(self._title(problem.path), problem.text) for problem in self._problems]
        return rows or [("", self.message)] * bool(self.message)

    def _title(self, field: str) -> str:
        name, _, path = field.partition(":")
        if path:
            known = self._parameters.get(path)
            return f"{name.capitalize()} of {known.title if known else path}"
        return next((each.title for each in NUMBERS if each.name == field), field.capitalize())

    def fields(self) -> list[tuple[Field, str, str]]:
        """Return (field, value, error)."""
        errors = self.errors()
        return [(field, self._text(field), errors.get(field.name, "")) for field in NUMBERS]

    def objectives(self) -> list[tuple[str, str, bool]]:
        return [(name, GOALS[name].title, name in self._objectives()) for name in OBJECTIVES]

    def rows(self) -> list[ParameterRow]:
        checked, errors = self._checked(), self.errors()
        return [
            ParameterRow(
                parameter,
                self._live[path],
                path in checked,
                {name: self._bound(path, name) for name in ("low", "high", "step", "scale")},
                {name: errors[f"{name}:{path}"] for name in ("low", "high", "step") if f"{name}:{path}" in errors},
            )
            for path, parameter in self._parameters.items()
        ]

    def _objectives(self) -> list[str]:
        return list(OBJECTIVES) if self._typed is None else self._typed.getlist("objectives")

    def _checked(self) -> list[str]:
        if self._typed is None:
            return by_default(self._parameters)
        return self._typed.getlist("parameters")

    def _bound(self, path: str, name: str) -> str:
        if self._typed is not None:
            return self._typed.get(f"{name}:{path}", "")
        if name not in ("low", "high") or self._parameters[path].kind not in ("int", "float"):
            return ""
        return number(suggested(self._parameters[path], self._live[path])[name == "high"])

    def _text(self, field: Field) -> str:
        if self._typed is not None:
            return self._typed.get(field.name, "")
        return "" if field.default is None else number(field.default)

    def _number(self, field: Field) -> Any:
        text = self._text(field).strip()
        if not text:
            return None
        value = accept(field, typed_number(text))
        if isinstance(value, Problem):
            allowed = f"{field.allowed}{', or empty' if field.default is None else ''}"
            self._refuse(field.name, text, "is not allowed", allowed)
            return None
        return value / 100 if field.unit == "%" else value

    def _range(self, path: str) -> Range:
        scale = self._bound(path, "scale")
        bounds = {name: self._number_at(name, path) for name in ("low", "high", "step")}
        return Range(path, **bounds, log=None if not scale else scale == "log")

    def _number_at(self, name: str, path: str) -> float | None:
        text = self._bound(path, name).strip()
        value = typed_number(text)
        if not isinstance(value, str):
            return value
        if text:
            known = self._parameters.get(path)
            self._refuse(f"{name}:{path}", text, "is not a number", known.allowed if known else "")
        return None

    def _check(self, ranges: list[Range]) -> None:
        try:
            space_of(self.strategy, ranges)
        except InvalidInput as error:
            self._problems += error.problems

    def _refuse(self, path: str, value: Any, message: str, allowed: str = "") -> None:
        self._problems.append(Problem(path, value, message, allowed))

    def _beside_its_field(self, problem: Problem) -> Problem:
        match = _OF_RANGE.fullmatch(problem.path)
        if match is None:
            return problem
        checked, index, name = self._checked(), int(match[1]), match[2]
        path = "parameters" if name == "path" else f"{'step' if name == 'log' else name}:{checked[index]}"
        return Problem(path, problem.value, problem.message, problem.allowed)
