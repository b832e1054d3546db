"""Problems of a document beyond single values: its shape, and fields that contradict each other."""

from collections.abc import Iterator, Mapping

from router.contract.fields import number, shown, suggestion
from router.contract.json_value import JsonObject
from router.contract.problem import Problem
from router.policy.rules.scorers import SCORERS
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES
from router.policy.strategies.llm_d import WEIGHTS as LLM_D_WEIGHTS
from router.policy.types import Policy

# The weights by which a strategy compares instances: at least one must be above 0.
_WEIGHTS = (
    ("strategy.hit_weight", "strategy.load_weight"),
    tuple(LLM_D_WEIGHTS.values()),
    tuple(f"strategy.weight_{name}" for name in SCORERS),
)


class InvalidDocument(ValueError):
    """Everything that is wrong with a document."""

    def __init__(self, errors: list[Problem]) -> None:
        super().__init__("; ".join(f"{error.path or 'document'}: {error.text}" for error in errors))
        self.errors = errors


def unknown(document: JsonObject, expected: Mapping[str, Parameter]) -> Iterator[Problem]:
    """Unknown sections and keys, and sections that are no objects."""
    sections = {path.partition(".")[0] for path in expected}
    known = sorted({*sections, "schema"})
    for section, part in document.items():
        if section == "schema":
            continue  # `upgrade` has checked it
        if section not in sections:
            yield Problem(shown(section), shown(part), f"unknown section{suggestion(section, known)}")
        elif not isinstance(part, dict):
            yield Problem(section, shown(part), "must be an object")
        else:
            yield from _unknown_keys(section, part, expected)


def crossed(values: Policy) -> Iterator[Problem]:
    """Rules between fields, reported at each of them; not checked where one of them is wrong by itself."""
    warm, heavy = values.get("classes.warm_new_tokens"), values.get("classes.heavy_new_tokens")
    if warm is not None and heavy is not None and warm >= heavy:
        low, high = number(warm), number(heavy)
        yield Problem("classes.warm_new_tokens", warm, f"must be below the heavy threshold ({high})")
        yield Problem("classes.heavy_new_tokens", heavy, f"must be above the warm threshold ({low})")
    for paths in _WEIGHTS:
        if all(values.get(path) == 0 for path in paths):
            names = " and ".join(PARAMETERS[path].title for path in paths)
            message = f"{names} cannot {'both' if len(paths) == 2 else 'all'} be 0: every instance would score alike"
            yield from (Problem(path, 0.0, message) for path in paths)


def _unknown_keys(section: str, part: JsonObject, expected: Mapping[str, Parameter]) -> Iterator[Problem]:
    keys = {path.partition(".")[2] for path in expected if path.startswith(section + ".")}
    for key, value in part.items():
        path = f"{section}.{key}"
        if path in expected:
            continue
        if path in PARAMETERS:
            owners = [name for name, strategy in STRATEGIES.items() if PARAMETERS[path] in strategy.parameters]
            owned = f"strateg{'ies' if len(owners) > 1 else 'y'} {' and '.join(owners)}"
            yield Problem(path, shown(value), f"is a parameter of the {owned}")
        else:
            yield Problem(shown(path), shown(value), f"unknown parameter{suggestion(key, sorted(keys))}")
