"""One parameter of a policy document: the form field, the check, the docs and the API schema all come from it."""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from router.contract.problem import Problem

Kind = Literal["int", "float", "bool", "choice"]
_KINDS: dict[type, Kind] = {int: "int", float: "float", bool: "bool"}
_WITHOUT_WORD = ("", "share", "ratio")  # units not written after a range


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One definition of one parameter. `raises`, `up` and `down` are texts for people; `metric` names a live metric."""

    path: str  # "classes.heavy_new_tokens"
    title: str
    unit: str = ""  # "tokens", "s", "share", "ratio", "requests"
    default: Any  # its type is the parameter's
    range: tuple[float, float] = (-math.inf, math.inf)  # of a number; both ends are allowed
    step: float | None = None  # change per press of an arrow key
    raises: str  # one line: what raising it does
    metric: str = ""  # key of the live metric shown beside it; empty: none
    choices: tuple[Any, ...] = ()
    up: str = "higher"  # text of a diff for a raised value
    down: str = "lower"
    strategies: tuple[str, ...] = ()  # that read it, of a parameter that all documents have; empty: all

    @property
    def kind(self) -> Kind:
        return "choice" if self.choices else _KINDS[type(self.default)]

    @property
    def allowed(self) -> str:
        if self.kind == "bool":
            return "true or false"
        if self.kind == "choice":
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        low, high = self.range
        unit = "" if self.unit in _WITHOUT_WORD else f" {self.unit}"
        return f"{self.noun} from {number(low)} to {number(high)}{unit}"

    @property
    def noun(self) -> str:
        return "a whole number" if self.kind == "int" else "a number"


def accept(parameter: Parameter, value: object) -> Any | Problem:
    """The value in the parameter's type (20000.0 is a whole number, 2 is a number), or what is wrong with it."""
    cleaned = _CLEAN[parameter.kind](parameter, value)
    if cleaned is not None:
        return cleaned
    return Problem(parameter.path, shown(value), _fault(parameter, value), parameter.allowed)


def number(value: float) -> str:
    """With thousands separators and without a needless fraction."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,}"


def shown(value: object) -> Any:
    """The value for a message or a JSON answer: short, and never NaN."""
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
    """The value as JSON, for a message."""
    return json.dumps(shown(value), ensure_ascii=False)


def is_number(value: object) -> TypeGuard[int | float]:
    """True and False are not numbers here, although Python says so."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _clean_int(parameter: Parameter, value: object) -> int | None:
    if not is_number(value) or not _in_range(parameter, value):
        return None
    return int(value) if value == int(value) else None


def _clean_float(parameter: Parameter, value: object) -> float | None:
    if not is_number(value) or not _in_range(parameter, value):
        return None
    return float(value) + 0.0  # -0.0 and 0.0 are one document


def _clean_bool(parameter: Parameter, value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _clean_choice(parameter: Parameter, value: object) -> Any | None:
    """The choice that is equal and of the same type: true is not 1."""
    return next((choice for choice in parameter.choices if type(choice) is type(value) and choice == value), None)


_CLEAN = {"int": _clean_int, "float": _clean_float, "bool": _clean_bool, "choice": _clean_choice}


def _in_range(parameter: Parameter, value: float) -> bool:
    """False for NaN as well: it compares false with everything."""
    low, high = parameter.range
    return low <= value <= high


def _fault(parameter: Parameter, value: object) -> str:
    if not is_number(value) or parameter.kind in ("bool", "choice"):
        return f"{quoted(value)} is not allowed"
    low, high = parameter.range
    if value < low:
        return f"{shown(value)} is below {number(low)}"
    if value > high:
        return f"{shown(value)} is above {number(high)}"
    return f"{shown(value)} is not {parameter.noun}"


def weight(path: str, default: float, title: str, raises: str, metric: str) -> Parameter:
    return Parameter(
        path=path,
        title=title,
        unit="ratio",
        default=default,
        range=(0.0, 100.0),
        step=0.1,
        raises=raises,
        metric=metric,
        up="counts more",
        down="counts less",
    )
