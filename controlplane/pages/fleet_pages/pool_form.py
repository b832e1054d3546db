"""A pool as a form: fields from the options of its kind, and the input as a pool of a fleet document. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fleet.kinds import KINDS
from fleet.kinds.options.option import options_of
from fleet.kinds.options.option_field import OptionField, shown, shown_in, typed_value
from fleet.spec import fleet_spec
from router.contract.values.fields import Field
from router.contract.values.problem import Problem

# The kind is chosen before the other fields
POOL_FIELDS = tuple(one for one in fleet_spec.POOL_FIELDS if one.name != "kind")
PREFIX = "engine."


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """A pool of a fleet document in the form's representation, valid or not, without empty fields."""

    kind: str
    common: Mapping[str, object]  # values by POOL_FIELDS
    engine: Mapping[str, object]

    def as_dict(self) -> dict[str, object]:
        return {**self.common, "kind": self.kind, "engine": dict(self.engine)}


def fields(
    pool: PoolEntry, errors: Mapping[str, str], known: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> tuple[list[OptionField], list[OptionField]]:
    """Return (fields of the pool, of its engine), with values and errors. `known` holds choices by field."""
    common = [
        OptionField(
            one,
            one.name,
            shown(pool.common.get(one.name)),
            errors.get(one.name, ""),
            suggestions=known.get(one.name, ()),
        )
        for one in POOL_FIELDS
    ]
    own = [
        OptionField(one, PREFIX + one.name, shown_in(one, pool.engine.get(one.name)), errors.get(PREFIX + one.name, ""))
        for one in options_of(KINDS[pool.kind].spec)
    ]
    return common, own


def typed_pool(typed: Mapping[str, str], kind: str) -> PoolEntry:
    engine = options_of(KINDS[kind].spec)
    return PoolEntry(kind, _typed_values(POOL_FIELDS, typed, ""), _typed_values(engine, typed, PREFIX))


def _typed_values(options: Sequence[Field], typed: Mapping[str, str], prefix: str) -> dict[str, object]:
    values = {one.name: typed_value(one, typed.get(prefix + one.name, "")) for one in options}
    return {name: value for name, value in values.items() if value is not None}


def with_pool(
    pools: Sequence[Mapping[str, object]], pool: PoolEntry, replaces: str
) -> tuple[list[Mapping[str, object]], int]:
    """Return (the pools of a document with this pool added, or in place of the pool `replaces`; its index)."""
    index = next((position for position, each in enumerate(pools) if each["name"] == replaces), len(pools))
    kept = pools[index] if index < len(pools) else {}
    sections = {name: value for name, value in kept.items() if name not in {*_OURS, "kind", "engine"}}
    made = {**pool.as_dict(), **sections}
    if "placement" in sections:
        made.pop("node", None)
    return [*pools[:index], made, *pools[index + 1 :]], index


_OURS = tuple(one.name for one in POOL_FIELDS)


def errors_of(problems: Sequence[Problem], index: int) -> tuple[dict[str, str], list[Problem]]:
    """Return (text by field, problems that belong to no field of this pool)."""
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
    """Return `engine.environment` for an error in one variable; empty if the form has no such field."""
    found = re.match(r"(engine\.)?\w+", path.removeprefix(pool)) if path.startswith(pool) else None
    return found[0] if found and (found[1] or found[0] in _OURS) else ""
