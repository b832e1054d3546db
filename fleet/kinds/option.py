"""Options of a kind, declared as fields of a frozen dataclass: the one source of checks, forms and documentation.

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
from typing import Any, TypeVar, cast

from router.contract.problem import Problem

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    kind: str  # a key of TYPES
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
    kind: str = "",
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    help: str = "",
) -> Any:
    """A dataclass field with its limits. `kind`: from the default unless given; "int" for None."""
    return dataclasses.field(
        default=default,
        metadata={
            "title": title,
            "kind": kind or _KINDS.get(type(default), "int"),
            "unit": unit,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
            "help": help,
        },
    )


def mapping_option(*, title: str, unit: str = "", help: str) -> Any:
    """Empty unless given."""
    metadata = option(None, title=title, kind="text", unit=unit, help=help).metadata
    return dataclasses.field(default_factory=dict, metadata=metadata)


_KINDS = {bool: "bool", float: "float", str: "text", tuple: "list"}


def options_of(spec: type) -> tuple[Option, ...]:
    return tuple(Option(name=field.name, default=field.default, **field.metadata) for field in dataclasses.fields(spec))


def check(spec: type, given: Mapping[str, object], path: str) -> list[Problem]:
    """All problems of the given options; missing options take their defaults."""
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
    """(problem, allowed values); an empty problem: the value is valid."""
    if value is None:
        return ("", "") if known.default is None else ("must not be empty", _allowed(known))
    accepts, words = TYPES[known.kind]
    if not accepts(value):
        return f"must be {words}", _allowed(known)
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
        return ", ".join(known.choices)
    low, high = known.minimum, known.maximum
    if low is None and high is None:
        return TYPES[known.kind][1]
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


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_text(name) and _is_line(one) for name, one in value.items())


# Type of an option: (check of a value, description)
TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_int, "a whole number"),
    "float": (_is_number, "a number"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "text": (_is_text, "text that is not empty"),
    "list": (_is_list, "a list of texts, none empty"),
    "map": (_is_map, "a mapping of names to texts"),
}


def build(spec: type[Spec], given: Mapping[str, object]) -> Spec:
    """The spec with its defaults; the options must have passed `check`."""
    types = _types_of(cast(type, spec))
    return spec(**{name: _plain(types[name], value) for name, value in given.items()})


@functools.cache
def _types_of(spec: type) -> dict[str, str]:
    """By name; cached, as every instance needs it every second."""
    return {field.name: field.metadata["kind"] for field in dataclasses.fields(spec)}


def _plain(kind: str, value: object) -> object:
    if value is None:
        return None
    if kind == "float":
        return float(cast("float", value))  # 1 and 1.0 are equal: a rewritten document must not look changed
    return tuple(cast("list[str]", value)) if kind == "list" else value
