"""Options of a kind, declared as fields of a frozen dataclass: parsed, documented and put into forms from one place.

@dataclass(frozen=True)
class SimSpec:
    seed: int = option(1, title="Seed", minimum=0, help="…")
"""

import dataclasses
import difflib
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from router.contract.problem import Problem


@dataclass(frozen=True, slots=True)
class Option:
    """What a form, a page of documentation or a schema needs to know about one option."""

    name: str
    kind: str  # "int", "float", "bool", "text", "list" (of texts) or "map" (text to text)
    default: Any  # None: the engine decides
    title: str
    unit: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    help: str


def option(
    default: Any,
    *,
    title: str,
    kind: str = "int",
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = (),
    help: str = "",
) -> Any:
    """A dataclass field that knows its limits. `choices` may be a function, so that a registry is read when needed."""
    return dataclasses.field(
        default=default,
        metadata={
            "title": title,
            "kind": kind,
            "unit": unit,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
            "help": help,
        },
    )


def options_of(spec: type) -> tuple[Option, ...]:
    return tuple(_option(field) for field in dataclasses.fields(spec))


def _option(field: "dataclasses.Field[Any]") -> Option:
    meta = dict(field.metadata)
    choices = meta.pop("choices")
    return Option(
        name=field.name, default=field.default, choices=tuple(choices() if callable(choices) else choices), **meta
    )


def check(spec: type, given: Mapping[str, object], path: str) -> list[Problem]:
    """Everything wrong with the given options; those left out take their defaults."""
    known = {known.name: known for known in options_of(spec)}
    problems = [
        Problem(f"{path}.{name}", value, f"unknown option{suggestion(name, known)}")
        for name, value in given.items()
        if name not in known
    ]
    for name, value in given.items():
        if name in known:
            message, allowed = _fault(known[name], value)
            if message:
                problems.append(Problem(f"{path}.{name}", value, message, allowed))
    return problems


def suggestion(name: object, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known are {', '.join(known)}"


def _fault(known: Option, value: object) -> tuple[str, str]:
    """(what is wrong, what is allowed); an empty message: nothing."""
    if value is None:
        return ("", "") if known.default is None else ("must not be empty", _allowed(known))
    if not _TYPES[known.kind](value):
        return f"must be {_WORDS[known.kind]}", _allowed(known)
    if known.choices and value not in known.choices:
        return f"must be one of {', '.join(known.choices)}", ""
    return ("", "") if _in_range(known, value) else ("out of range", _allowed(known))


def _in_range(known: Option, value: object) -> bool:
    if known.kind not in {"int", "float"}:
        return True
    number = cast("float", value)
    return (known.minimum is None or number >= known.minimum) and (known.maximum is None or number <= known.maximum)


def _allowed(known: Option) -> str:
    if known.choices:
        return f"{', '.join(known.choices)}"
    low, high = known.minimum, known.maximum
    if low is None and high is None:
        return f"{_WORDS[known.kind]}"
    unit = f" {known.unit}" if known.unit else ""
    if high is None:
        return f"{low:g}{unit} or more"
    return f"{low:g} to {high:g}{unit}" if low is not None else f"up to {high:g}{unit}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_line(value: object) -> bool:
    return isinstance(value, str) and "\x00" not in value


def _is_text(value: object) -> bool:
    return _is_line(value) and bool(value)


_TYPES: dict[str, Callable[[object], bool]] = {
    "int": _is_int,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "text": _is_text,
    "list": lambda value: isinstance(value, list | tuple) and all(_is_text(one) for one in value),
    "map": lambda value: (
        isinstance(value, Mapping) and all(_is_text(name) and _is_line(one) for name, one in value.items())
    ),
}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "text": "text that is not empty",
    "list": "a list of texts, none empty",
    "map": "a mapping of names to texts",
}


def build(spec: type, given: Mapping[str, object]) -> Any:
    """The spec with its defaults filled in; the options must have passed `check`."""
    kinds = _kinds_of(spec)
    return spec(**{name: _plain(kinds[name], value) for name, value in given.items()})


@functools.cache
def _kinds_of(spec: type) -> dict[str, str]:
    """By name; asked for each instance each second."""
    return {field.name: field.metadata["kind"] for field in dataclasses.fields(spec)}


def _plain(kind: str, value: object) -> object:
    if value is None:
        return None
    if kind == "float":
        # 1 and 1.0 are the same scale: a rewritten document must not look like a changed one.
        return float(cast("float", value))
    return tuple(cast("list[str]", value)) if kind == "list" else value


def json_schema(spec: type) -> dict[str, Any]:
    """JSON schema of the options (for the API's documentation and for editors)."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {known.name: _property_schema(known) for known in options_of(spec)},
    }


_SCHEMAS: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "text": {"type": "string"},
    "list": {"type": "array", "items": {"type": "string"}},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
}


def _property_schema(known: Option) -> dict[str, Any]:
    schema: dict[str, Any] = {**_SCHEMAS[known.kind], "title": known.title, "description": known.help}
    limits = {"minimum": known.minimum, "maximum": known.maximum, "default": known.default}
    schema |= {key: value for key, value in limits.items() if value is not None}
    return schema | ({"enum": list(known.choices)} if known.choices else {})
