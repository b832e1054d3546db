"""A field of a document, declared once for its check, form, documentation and schema.
This module imports only problems from Weir, as `router.policy` uses it too.
"""

import difflib
import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from router.contract.values.problem import Problem

REQUIRED: Any = object()  # default of a required field
_KINDS = {bool: "bool", int: "int", float: "float", str: "text", tuple: "list"}
_WITHOUT_WORD = ("", "share", "ratio")  # units that are not written after a range


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str  # name in the document; for a policy's parameter, its path
    title: str = ""
    default: Any = REQUIRED  # default value; None makes the field nullable
    kind: str = ""  # a key of KINDS; empty: derived from choices or default, "int" for None
    unit: str = ""  # "tokens", "s", "share", "ratio", "requests"
    range: tuple[float, float] = (-math.inf, math.inf)  # range of a number, inclusive
    choices: tuple[Any, ...] = ()
    # Groups of choices that can be combined: a list names at most one of each group
    groups: tuple[tuple[str, ...], ...] = ()
    help: str = ""
    fits: Callable[[Any], bool] | None = None  # a further rule, described in `words`
    words: str = ""  # the allowed values in words, if kind, range and choices do not state them
    instead: str = ""  # shown in place of a rejected value that may be secret

    def __post_init__(self) -> None:
        if not self.kind:
            object.__setattr__(self, "kind", "choice" if self.choices else _KINDS.get(type(self.default), "int"))

    @property
    def named_apart(self) -> bool:
        """Return whether the field's name in the document differs from its title."""
        return self.name.replace("_", " ") != self.title.lower()

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "float") and not self.choices

    @property
    def minimum(self) -> float | None:
        return self.range[0] if self.is_number and self.range[0] > -math.inf else None

    @property
    def maximum(self) -> float | None:
        return self.range[1] if self.is_number and self.range[1] < math.inf else None

    @property
    def noun(self) -> str:
        return KINDS[self.kind][1]

    @property
    def allowed(self) -> str:
        if self.words:
            return self.words
        if self.groups:
            each = " | ".join(", ".join(group) for group in self.groups)
            return f"{self.choices[0]}, or one, or a list of at most one of each: {each}"
        if self.choices:
            return "one of " + ", ".join(str(choice) or '""' for choice in self.choices)
        return f"{self.noun}{self._limits}" if self.is_number else self.noun

    @property
    def joined(self) -> tuple[str, ...]:
        """Return the allowed lists, each as one text, with choices in the order of their groups."""
        return _joined(self.groups)

    @property
    def _limits(self) -> str:
        low, high = self.minimum, self.maximum
        unit = "" if self.unit in _WITHOUT_WORD else f" {self.unit}"
        if low is not None and high is not None:
            return f" from {number(low)} to {number(high)}{unit}"
        if low is not None:
            return f" from {number(low)}{unit} on"
        return "" if high is None else f" up to {number(high)}{unit}"


def accept(field: Field, value: object, path: str = "") -> Any | Problem:
    """Convert a value to the field's type (20000.0 is a whole number, 2 is a number), or return what is wrong."""
    if value is None and field.default is None:
        return None
    cleaned = _chosen(field, value) if field.choices else KINDS[field.kind][0](value)
    if cleaned is None or not _in_range(field, cleaned) or not (field.fits is None or field.fits(cleaned)):
        given = field.instead or value
        return Problem(path or field.name, shown(given), _fault(field, given), field.allowed)
    return cleaned


def read(fields: Iterable[Field], given: Mapping[str, Any], path: str, problems: list[Problem]) -> dict[str, Any]:
    """Read the values by name, with defaults. Add every fault to `problems`."""
    known = {field.name: field for field in fields}
    values = {name: _read(field, given, _at(path, name), problems) for name, field in known.items()}
    problems += unknown(given, known, path)
    return values


def _read(field: Field, given: Mapping[str, Any], path: str, problems: list[Problem]) -> Any:
    if field.name not in given and field.default is not REQUIRED:
        return field.default
    found = accept(field, given.get(field.name), path)
    if not isinstance(found, Problem):
        return found
    problems.append(found if field.name in given else Problem(path, None, "missing", field.allowed))
    return None


def unknown(given: Mapping[str, Any], known: Iterable[str], path: str, noun: str = "field") -> list[Problem]:
    """Report unknown names, up to a limit, and suggest the known name that each resembles."""
    names = list(known)
    found = [name for name in given if name not in names][:50]
    message = f"unknown {noun}"
    return [Problem(_at(path, str(name)[:80]), given[name], f"{message}{suggestion(name, names)}") for name in found]


def suggestion(name: object, known: Iterable[str]) -> str:
    """Suggest the known name that resembles the given one; if there is none, list the choices."""
    names = list(known)
    near = difflib.get_close_matches(str(name)[:60], names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(names)}"


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# Values as text


def number(value: float) -> str:
    """Format a number with thousands separators and without an empty fraction."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,}"


def shown(value: object) -> Any:
    """Shorten a value for a message or a JSON answer; never NaN."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 53 else "a number beyond 53 bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        text = value[:60].encode("utf-8", "replace").decode()  # JSON may carry half a surrogate pair
        return text if len(value) <= 60 else text[:59] + "…"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else "a value of another kind"


def quoted(value: object) -> str:
    """Format the value as JSON for a message."""
    return json.dumps(shown(value), ensure_ascii=False)


def _fault(field: Field, value: object) -> str:
    if not field.is_number or not is_number(value):
        return f"{quoted(value)} is not allowed"
    low, high = field.range
    if value < low:
        return f"{shown(value)} is below {number(low)}"
    if value > high:
        return f"{shown(value)} is above {number(high)}"
    return f"{shown(value)} is not {field.noun}"


# Text of a form as a value

_SEPARATOR = "[, _\u202f\u00a0]"
_GROUPED = re.compile(rf"[+-]?\d{{1,3}}({_SEPARATOR}\d{{3}})+(\.\d+)?")
_WHOLE = re.compile(r"[+-]?\d{1,18}")


def typed_number(text: str) -> int | float | str:
    """Parse a finite number, with or without thousands separators; return other text unchanged, so that the check
    refuses it."""
    text = text.strip()
    digits = re.sub(_SEPARATOR, "", text) if _GROUPED.fullmatch(text) else text
    if _WHOLE.fullmatch(digits):
        return int(digits)
    try:
        value = float(digits)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def typed_flag(text: str) -> bool | str:
    """Parse `true` or `false`; return other text unchanged."""
    return {"true": True, "false": False}.get(text.strip(), text)


# Kinds


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a number; unlike in Python, True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> int | None:
    """Accept an int of any size, or a whole float."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: object) -> float | None:
    """Accept a float; -0.0 becomes 0.0, so that both give one document."""
    if not is_number(value) or abs(value) > 1e300 or not math.isfinite(value):
        return None
    return float(value) + 0.0


def _line(value: object) -> str | None:
    return value if isinstance(value, str) and "\x00" not in value else None


def _text(value: object) -> str | None:
    return _line(value) or None


def _list(value: object) -> tuple[str, ...] | None:
    return tuple(value) if isinstance(value, list | tuple) and all(map(_text, value)) else None


def _map(value: object) -> Mapping[str, str] | None:
    fine = isinstance(value, Mapping) and all(_text(name) and _line(one) is not None for name, one in value.items())
    return value if fine else None  # type: ignore[return-value]  # `fine` says that it is one


JOIN = "+"


@functools.cache
def _joined(groups: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    found = itertools.product(*(("", *group) for group in groups))
    lists = ([name for name in each if name] for each in found)
    return tuple(JOIN.join(names) for names in lists if len(names) > 1)


def _chosen(field: Field, value: object) -> Any | None:
    """Return the choice with this value and type: true is not 1. A list is returned as one text."""
    if field.groups:
        names = value.split(JOIN) if isinstance(value, str) else _list(value)
        if names is None or len(names) > len(field.groups):
            return None
        known = (*field.choices, *field.joined)
        return next((text for text in known if sorted(text.split(JOIN)) == sorted(names)), None)
    return next((choice for choice in field.choices if type(choice) is type(value) and choice == value), None)


def _in_range(field: Field, value: Any) -> bool:
    return not field.is_number or field.range[0] <= value <= field.range[1]


# A kind: (a function that returns the value in its type or None, allowed values as text)
KINDS: dict[str, tuple[Callable[[object], Any | None], str]] = {
    "int": (_whole, "a whole number"),
    "float": (_float, "a number"),
    "bool": (lambda value: value if isinstance(value, bool) else None, "true or false"),
    "choice": (lambda value: value, "one of its choices"),
    "text": (_text, "text that is not empty"),
    "list": (_list, "a list of texts, none empty"),
    "map": (_map, "a mapping of names to texts"),
}
