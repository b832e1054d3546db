"""The form that starts a tuning: its fields and their errors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict
from pydantic import ValidationError

from controlplane.common.input_errors import problems_of
from controlplane.evidence.tuning.display import GOALS
from controlplane.evidence.tuning.goals import OBJECTIVES
from controlplane.evidence.tuning.services import TuningIn
from controlplane.evidence.tuning.space import by_default, searchable, suggested
from router.contract.values.fields import number, typed_number
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, Problem, by_path
from router.policy.schema.parameter import Parameter
from router.policy.types import ParsedPolicy as Document

SCALES = (("", "automatic"), ("linear", "linear"), ("log", "logarithmic"))
_OF_RANGE = re.compile(r"parameters\.(\d+)\.(\w+)")
NUMBERS = {  # field → (title, hint)
    "trials": ("Trials", "points to simulate at most"),
    "time_limit_s": ("Time limit, s", "time limit of the search; empty: none"),
    "workers": ("Workers", "processes at the same time"),
    "seed": ("Seed", "equal seeds draw equal points"),
    "max_requests": ("Requests at most", "the newest of a recording"),
    "held_out": ("Held out", "share of the requests, 0–1: the last ones check the winners"),
    "ttft_limit_ms": ("TTFT limit, ms", "limit for goodput; empty: p90 of the live version"),
    "tpot_limit_ms": ("TPOT limit, ms", "limit for goodput; empty: p90 of the live version"),
}


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter of the form."""

    parameter: Parameter
    live: Any
    checked: bool
    values: Mapping[str, str]  # low, high, step, scale as entered
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
        self._live, self._typed = live, typed
        self._parameters = searchable(strategy)
        self._problems: Sequence[Problem] = ()
        self.message = ""

    @property
    def chosen(self) -> Mapping[str, str]:
        """The pool and trace as entered."""
        return {} if self._typed is None else {name: self._typed.get(name, "") for name in ("pool", "trace")}

    def asked(self) -> TuningIn:
        """Return the request. InvalidInput names every wrong field."""
        numbers = {name: typed_number(text) for name in NUMBERS if (text := self._text(name).strip())}
        given = {"objectives": self._objectives(), "parameters": [self._range(path) for path in self._checked()]}
        wrong = [Problem(name, "", f"choose at least one {name[:-1]}") for name, chosen in given.items() if not chosen]
        try:
            asked = TuningIn.model_validate({**self.chosen, **numbers, **{k: v for k, v in given.items() if v}})
        except ValidationError as error:
            wrong += problems_of(error)
        if wrong:
            raise InvalidInput("the tuning was not started", wrong)
        return asked

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
        return NUMBERS[field][0] if field in NUMBERS else field.capitalize()

    def fields(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield (name, title, hint, value, error)."""
        errors = self.errors()
        for name, (title, hint) in NUMBERS.items():
            yield name, title, hint, self._text(name), errors.get(name, "")

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
        return by_default(self._parameters) if self._typed is None else self._typed.getlist("parameters")

    def _bound(self, path: str, name: str) -> str:
        if self._typed is not None:
            return self._typed.get(f"{name}:{path}", "")
        if name not in ("low", "high") or self._parameters[path].kind not in ("int", "float"):
            return ""
        return number(suggested(self._parameters[path], self._live[path])[name == "high"])

    def _text(self, name: str) -> str:
        if self._typed is not None:
            return self._typed.get(name, "")
        default = TuningIn.model_fields[name].default
        return "" if default is None else number(default)

    def _range(self, path: str) -> JsonObject:
        bounds = {name: typed_number(self._bound(path, name)) for name in ("low", "high", "step")}
        scale = self._bound(path, "scale")
        given = {name: bound for name, bound in bounds.items() if bound != ""}
        return {"path": path, **given, **({"log": scale == "log"} if scale else {})}

    def _beside_its_field(self, problem: Problem) -> Problem:
        match = _OF_RANGE.fullmatch(problem.path)
        if match is None:
            return problem
        index, name = int(match[1]), match[2]
        path = "parameters" if name == "path" else f"{'step' if name == 'log' else name}:{self._checked()[index]}"
        return Problem(path, problem.value, problem.message, problem.allowed)
