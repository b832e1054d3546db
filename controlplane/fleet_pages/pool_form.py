"""A pool as a form: fields from the options of its kind, and the input as a pool of a fleet document. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.kinds.kind import Kind
from fleet.kinds.option import Option, options_of
from fleet.spec.sections import MAX_REPLICAS
from router.contract.problem import Problem

POOL_FIELDS = (
    Option(
        "name",
        "text",
        None,
        "Name",
        "",
        None,
        None,
        (),
        "Lower-case letters, digits and dashes; cannot be changed later.",
    ),
    Option("model", "text", None, "Model", "", None, None, (), "The name in requests of clients."),
    Option("replicas", "int", 1, "Replicas", "instances", 0, MAX_REPLICAS, (), "Number of instances."),
    Option("policy", "text", "default", "Policy", "", None, None, (), "The policy that routes its requests."),
    Option("node", "text", "local", "Node", "", None, None, (), "The host of its instances."),
)
PREFIX = "engine."


@dataclass(frozen=True, slots=True)
class PoolField:
    option: Option
    name: str  # of the input element
    value: str  # as typed
    error: str = ""

    @property
    def hint(self) -> str:
        return " ".join(part for part in (self.option.help, _allowed(self.option), _default(self.option)) if part)

    @property
    def control(self) -> str:
        """The kind of input element."""
        if self.option.kind == "bool" or self.option.choices:
            return "select"
        return "lines" if self.option.kind in {"list", "map"} else "line"

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        """(value, label); the empty value leaves the option out."""
        given = ("true", "false") if self.option.kind == "bool" else self.option.choices
        default = self.option.default
        left_out = ("", f"default ({str(default).lower() if isinstance(default, bool) else default})")
        return (left_out, *((each, each) for each in given))


def _allowed(option: Option) -> str:
    if option.kind == "list":
        return "One per line."
    if option.kind == "map":
        return "NAME=value, one per line."
    if option.minimum is None or option.maximum is None:
        return ""
    return f"{option.minimum:,} to {option.maximum:,}{f' {option.unit}' if option.unit else ''}."


def _default(option: Option) -> str:
    if option.default in (None, "", ()) or option.choices or option.kind == "bool":
        return ""
    return f"Default: {option.default}."


def fields(pool: Mapping[str, Any], kind: Kind, errors: Mapping[str, str]) -> tuple[list[PoolField], list[PoolField]]:
    """(of the pool, of its engine), with values and errors."""
    engine = pool.get("engine") or {}
    common = [PoolField(one, one.name, shown(pool.get(one.name)), errors.get(one.name, "")) for one in POOL_FIELDS]
    own = [
        PoolField(one, PREFIX + one.name, shown(engine.get(one.name)), errors.get(PREFIX + one.name, ""))
        for one in options_of(kind.spec)
    ]
    return common, own


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "\n".join(f"{name}={text}" for name, text in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(value)


def typed_pool(typed: Mapping[str, str], kind: Kind) -> dict[str, Any]:
    """The input as a pool of the document, without empty fields."""
    pool = {one.name: _read(one, typed.get(one.name, "")) for one in POOL_FIELDS}
    engine = {one.name: _read(one, typed.get(PREFIX + one.name, "")) for one in options_of(kind.spec)}
    given = {name: value for name, value in pool.items() if value is not None}
    return given | {"kind": kind.name, "engine": {name: value for name, value in engine.items() if value is not None}}


def _read(option: Option, text: str) -> Any:
    text = text.replace("\r\n", "\n").strip()
    return _READERS[option.kind](text) if text else None


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            return text  # the document check reports it

    return read


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _names(text: str) -> Any:
    pairs = [line.partition("=") for line in _lines(text)]
    if any(not equals for _, equals, _ in pairs):
        return text
    return {name.strip(): value.strip() for name, _, value in pairs}


_READERS: dict[str, Callable[[str], Any]] = {
    "int": _number(int),
    "float": _number(float),
    "bool": lambda text: {"true": True, "false": False}.get(text, text),
    "text": str,
    "list": _lines,
    "map": _names,
}


def with_pool(document: Mapping[str, Any], pool: Mapping[str, Any], replaces: str) -> tuple[dict[str, Any], int]:
    """The document with this pool added, or in place of the pool `replaces`, and its index."""
    pools = list(document["spec"]["pools"])
    index = next((position for position, each in enumerate(pools) if each["name"] == replaces), len(pools))
    kept = pools[index] if index < len(pools) else {}
    sections = {name: value for name, value in kept.items() if name not in {*_OURS, "kind", "engine"}}
    made = {**pool, **sections}
    if "placement" in sections:
        made.pop("node", None)
    pools[index : index + 1] = [made]
    return {**document, "spec": {**document["spec"], "pools": pools}}, index


_OURS = tuple(one.name for one in POOL_FIELDS)


def errors_of(problems: Sequence[Problem], index: int) -> tuple[dict[str, str], list[Problem]]:
    """(field → text, the problems that belong to no field of this pool)."""
    errors: dict[str, list[str]] = {}
    others = []
    for problem in problems:
        field = _field_of(problem.path, f"spec.pools[{index}].")
        if field:
            errors.setdefault(field, []).append(problem.text)
        else:
            others.append(problem)
    return {field: "; ".join(dict.fromkeys(texts)) for field, texts in errors.items()}, others


def _field_of(path: str, pool: str) -> str:
    """`engine.environment` for a fault of one variable; empty when the form has no such field."""
    found = re.match(r"(engine\.)?\w+", path.removeprefix(pool)) if path.startswith(pool) else None
    return found[0] if found and (found[1] or found[0] in _OURS) else ""
