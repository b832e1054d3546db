"""Options of a kind, declared as fields of a frozen dataclass: the one source of checks, forms and documentation.

@dataclass(frozen=True)
class ExampleSpec:
    seed: int = option(1, "Seed", "…", range=(0, 2**31 - 1))
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from router.contract.values.fields import KINDS, Field, accept, unknown
from router.contract.values.problem import Problem

Spec = TypeVar("Spec")


def option(
    default: Any,
    title: str,
    help: str = "",
    *,
    kind: str = "",
    unit: str = "",
    range: tuple[float, float] = (-math.inf, math.inf),
    choices: tuple[str, ...] = (),
    groups: tuple[tuple[str, ...], ...] = (),
) -> Any:
    """Declare a dataclass field with its limits. `kind` is by default derived from the default value; "int" for
    None."""
    kind = kind or ("text" if choices else "")
    made = Field(
        name="",
        title=title,
        default=default,
        help=help,
        kind=kind,
        unit=unit,
        range=range,
        choices=choices,
        groups=groups,
    )
    return dataclasses.field(default=default, metadata={"field": made})


def mapping_option(*, title: str, unit: str = "", help: str) -> Any:
    """Declare a mapping, empty by default."""
    metadata = option(None, title, help, unit=unit, kind="map").metadata
    return dataclasses.field(default_factory=dict, metadata=metadata)


def options_of(spec: type) -> tuple[Field, ...]:
    return tuple(dataclasses.replace(each.metadata["field"], name=each.name) for each in dataclasses.fields(spec))


def check(spec: type, given: Mapping[str, object], path: str = "") -> list[Problem]:
    """Return all problems of the given options; missing options take their defaults."""
    known = {each.name: each for each in options_of(spec)}
    at = f"{path}." if path else ""
    found = [accept(known[name], value, at + name) for name, value in given.items() if name in known]
    return [*unknown(given, known, path, "option"), *(each for each in found if isinstance(each, Problem))]


def build(spec: type[Spec], given: Mapping[str, object]) -> Spec:
    """Return the spec with its defaults; the options must have passed `check`."""
    known = _by_name(cast(type, spec))
    return spec(**{name: _plain(known[name], value) for name, value in given.items()})


@functools.cache
def _by_name(spec: type) -> dict[str, Field]:
    """Return the options by name; cached, because every instance needs them every second."""
    return {each.name: each for each in options_of(spec)}


def _plain(field: Field, value: object) -> object:
    """Convert the value to the option's type: 1 and 1.0 are equal, so that a rewritten document does not look
    changed."""
    cleaned = accept(field, value) if field.groups else KINDS[field.kind][0](value)
    return value if cleaned is None or isinstance(cleaned, Problem) else cleaned
