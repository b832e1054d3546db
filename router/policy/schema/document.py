"""The policy document: JSON in, `ParsedPolicy` out, or InvalidInput with every problem. A stored document keeps its
text and its sha256. Every reader upgrades it first, so no data migration is needed. A new schema adds a function to
`STEPS`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from router.contract.values.fields import accept, number, quoted, shown, suggestion
from router.contract.values.json_value import Json, JsonObject
from router.contract.values.problem import InvalidInput, Problem
from router.policy.rules.scorers import SCORERS
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import COMMON, OF_OFFLOADS, PARAMETERS, STRATEGY_NAME
from router.policy.strategies import STRATEGIES
from router.policy.strategies.peers.llm_d import WEIGHTS as LLM_D_WEIGHTS
from router.policy.types import ParsedPolicy

SCHEMA = 2
PROBLEMS_SHOWN = 50  # limits the work on a document with a million unknown keys
# Weights by which strategies compare instances; at least one must be above 0.
_WEIGHTS = (
    ("strategy.hit_weight", "strategy.load_weight"),
    tuple(LLM_D_WEIGHTS.values()),
    tuple(f"strategy.weight_{name}" for name in SCORERS),
)


def parameters_of(strategy: str) -> tuple[Parameter, ...]:
    """Return the parameters of this strategy's documents, in the page's order. InvalidInput if the
    strategy is unknown.
    """
    known = accept(STRATEGY_NAME, strategy)
    if isinstance(known, Problem):
        raise InvalidInput(problems=[known])
    return (STRATEGY_NAME, *STRATEGIES[known].parameters, *COMMON)


def default(strategy: str = STRATEGY_NAME.default) -> JsonObject:
    """Return a full valid document."""
    values = {parameter.path: parameter.default for parameter in parameters_of(strategy)}
    return _nest({**values, STRATEGY_NAME.path: strategy})


def parse(document: object) -> ParsedPolicy:
    """Parse a document of any schema; missing keys take their defaults. InvalidInput lists every problem."""
    if not isinstance(document, dict):
        raise InvalidInput(problems=[Problem("", shown(document), "the document must be a JSON object")])
    document = upgrade(document)
    expected = _expected(document)
    accepted = {path: accept(parameter, _given(document, parameter)) for path, parameter in expected.items()}
    problems = [value for value in accepted.values() if isinstance(value, Problem)]
    values = {path: value for path, value in accepted.items() if not isinstance(value, Problem)}
    policy = ParsedPolicy(values)
    problems += _crossed(policy)
    problems += islice(_unknown(document, expected), PROBLEMS_SHOWN)
    if problems:
        raise InvalidInput(problems=problems[:PROBLEMS_SHOWN])
    return policy


def _unknown(document: JsonObject, expected: Mapping[str, Parameter]) -> Iterator[Problem]:
    """List unknown sections and keys, and sections that are not objects."""
    sections = {path.partition(".")[0] for path in expected}
    known = sorted({*sections, "schema"})
    for section, part in document.items():
        if section == "schema":
            continue  # checked by `upgrade`
        if section not in sections:
            yield Problem(shown(section), shown(part), f"unknown section{suggestion(section, known)}")
        elif not isinstance(part, dict):
            yield Problem(section, shown(part), "must be an object")
        else:
            yield from _unknown_keys(section, part, expected)


def _crossed(values: ParsedPolicy) -> Iterator[Problem]:
    """Check rules between fields and report a fault at each of the fields; skip rules whose fields are invalid by
    themselves."""
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


def dump(policy: ParsedPolicy) -> JsonObject:
    """Return the full document of a policy, such that parse(dump(p)) == p."""
    return _nest(policy)


def sha256(document: JsonObject) -> str:
    """Return the SHA-256 of the canonical JSON: sorted keys, no blanks, ASCII."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def apply_overrides(document: JsonObject, overrides: Mapping[str, Json]) -> JsonObject:
    """Copy a document with values replaced by path: {"classes.heavy_new_tokens": 10000, "strategy.name": "lpwl"}. The
    document may be of an older schema. A new strategy drops the parameters of the old one. Validation is left to
    `parse`.
    """
    current = upgrade_if_known(document)
    result: JsonObject = {section: dict(part) if isinstance(part, dict) else part for section, part in current.items()}
    own = result.get("strategy")
    if STRATEGY_NAME.path in overrides and isinstance(own, dict):
        kept = _expected({"strategy": {"name": overrides[STRATEGY_NAME.path]}})
        paths = {key: f"strategy.{key}" for key in own}
        result["strategy"] = {
            key: value for key, value in own.items() if paths[key] in kept or paths[key] not in PARAMETERS
        }
    for path, value in overrides.items():
        section, _, key = path.partition(".")
        part = result.get(section)
        result[section] = {**(part if isinstance(part, dict) else {}), key: value} if key else value
    return result


def values_of(document: JsonObject) -> JsonObject:
    """Return every value by path, with defaults filled in and unvalidated, to display a draft that may be invalid."""
    document = upgrade_if_known(document)
    strategy = accept(STRATEGY_NAME, _given(document, STRATEGY_NAME))
    parameters = COMMON if isinstance(strategy, Problem) else parameters_of(strategy)
    values = {parameter.path: _given(document, parameter) for parameter in parameters}
    for section, part in document.items():
        if isinstance(part, dict):
            values |= {f"{section}.{key}": value for key, value in part.items()}
        elif section != "schema":
            values[section] = part
    return values


def in_force(document: JsonObject) -> JsonObject:
    """Return the values that strategy and flow read, by path. Documents with equal values make equal decisions."""
    values = values_of(document)
    strategy, offloading = str(values[STRATEGY_NAME.path]), offloads(values)
    return {path: value for path, value in values.items() if _is_read(path, strategy, offloading)}


def offloads(values: JsonObject) -> bool:
    """Return whether the policy may compute prompt and answer on different instances. `values` are by path."""
    strategy = STRATEGIES.get(str(values[STRATEGY_NAME.path]))
    return values.get("flow.heavy") == "offload" or (strategy is not None and strategy.offloads)


def _is_read(path: str, strategy: str, offloading: bool) -> bool:
    parameter = PARAMETERS.get(path)
    if parameter is None:
        return False
    if path in OF_OFFLOADS and not offloading:
        return False
    return not parameter.strategies or strategy in parameter.strategies


def _expected(document: JsonObject) -> dict[str, Parameter]:
    """Return the parameters that the document may have, by path; all if its strategy is unknown."""
    strategy = accept(STRATEGY_NAME, _given(document, STRATEGY_NAME))
    if isinstance(strategy, Problem):
        return PARAMETERS
    return {parameter.path: parameter for parameter in parameters_of(strategy)}


def _given(document: JsonObject, parameter: Parameter) -> Json:
    section, _, key = parameter.path.partition(".")
    part = document.get(section)
    return part.get(key, parameter.default) if isinstance(part, dict) else parameter.default


def _nest(values: JsonObject) -> JsonObject:
    sections: dict[str, JsonObject] = {}
    for path, value in values.items():
        section, _, key = path.partition(".")
        sections.setdefault(section, {})[key] = value
    return {"schema": SCHEMA, **sections}


# Older schemas


def _rename_route(document: JsonObject) -> JsonObject:
    """Upgrade 1 → 2: the section `route` is called `strategy`."""
    if "strategy" in document:
        return document  # if both exist, `parse` reports the old one as unknown
    return {"strategy" if section == "route" else section: part for section, part in document.items()}


STEPS: dict[int, Callable[[JsonObject], JsonObject]] = {1: _rename_route}


def upgrade(document: JsonObject) -> JsonObject:
    """Return the document in the current schema, values unchecked. InvalidInput if its schema is unknown."""
    schema = document.get("schema", SCHEMA)
    if type(schema) is not int or schema not in (*STEPS, SCHEMA):  # true is not 1
        message = f"{quoted(schema)} is not a schema of policy documents"
        raise InvalidInput(problems=[Problem("schema", shown(schema), message, f"{min(STEPS)} to {SCHEMA}")])
    for step in range(schema, SCHEMA):
        document = {**STEPS[step](document), "schema": step + 1}
    return document


def upgrade_if_known(document: JsonObject) -> JsonObject:
    """Upgrade a document that may be invalid, so that it can be displayed."""
    try:
        return upgrade(document)
    except InvalidInput:
        return document
