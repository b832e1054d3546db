"""The parameters that differ between two policy documents, with explanations."""

from dataclasses import dataclass
from typing import Any

from router.contract.values.fields import is_number
from router.contract.values.json_value import JsonObject
from router.policy.schema.document import values_of
from router.policy.schema.parameters import PARAMETERS, STRATEGY_NAME
from router.policy.strategies import STRATEGIES, title_of


@dataclass(frozen=True, slots=True)
class ParameterChange:
    path: str
    title: str
    unit: str
    old: Any  # None if the old document lacks the parameter
    new: Any  # None if the new document lacks it
    direction: str  # "more requests count as heavy"


def diff(old: JsonObject, new: JsonObject) -> tuple[ParameterChange, ...]:
    """Return the differences in the order of the page. Documents may be invalid, as drafts are shown unchecked."""
    before, after = values_of(old), values_of(new)
    paths = [*PARAMETERS, *(path for path in {**before, **after} if path not in PARAMETERS)]
    return tuple(
        _change(path, before.get(path), after.get(path), after.get(STRATEGY_NAME.path))
        for path in paths
        if not _same(before.get(path), after.get(path))
    )


def _same(old: Any, new: Any) -> bool:
    """Compare two values: 2 equals 2.0, but true does not equal 1."""
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)


def _change(path: str, old: Any, new: Any, strategy: Any) -> ParameterChange:
    parameter = PARAMETERS.get(path)
    if parameter is None:
        return ParameterChange(path, path, "", old, new, "not a known parameter")
    return ParameterChange(path, parameter.title, parameter.unit, old, new, _direction(path, old, new, strategy))


def _direction(path: str, old: Any, new: Any, strategy: Any) -> str:
    if path == STRATEGY_NAME.path:
        known = STRATEGIES.get(new) if isinstance(new, str) else None
        return f"another strategy: {known.summary[0].lower()}{known.summary[1:]}" if known else "not a known strategy"
    if old is None:
        return f"comes with the strategy {title_of(str(strategy))}"
    if new is None:
        return f"belonged to the old strategy; {title_of(str(strategy))} does not use it"
    if not is_number(old) or not is_number(new) or PARAMETERS[path].kind == "choice":
        return "changed"
    return PARAMETERS[path].up if new > old else PARAMETERS[path].down
