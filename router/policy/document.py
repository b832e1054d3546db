"""The policy document: JSON in, `Policy` out, and every fault with its path, value and allowed range.

InvalidDocument
└── .errors: list[Problem(path, value, message)]
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from router.policy.parameter import Parameter, Rejected, accept, number, quoted, shown
from router.policy.parameters import COMMON, PARAMETERS, ROUTE_NAME
from router.policy.routes import ROUTES
from router.policy.types import Policy

SCHEMA = 1
PROBLEMS_SHOWN = 50  # a document with thousands of unknown keys does not make an answer with thousands of lines


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    value: Any  # short and safe to write as JSON
    message: str  # holds the allowed range


class InvalidDocument(ValueError):
    """What is wrong with a document, every fault of it."""

    def __init__(self, errors: list[Problem]) -> None:
        super().__init__("; ".join(f"{error.path or 'document'}: {error.message}" for error in errors))
        self.errors = errors


def parameters_of(route: str) -> tuple[Parameter, ...]:
    """The parameters of a document with this route, in the order of the page. InvalidDocument when it is unknown."""
    if route not in ROUTES:
        raise InvalidDocument([_unknown_route(route)])
    return (ROUTE_NAME, *ROUTES[route].parameters, *COMMON)


def default(route: str = ROUTE_NAME.default) -> dict[str, Any]:
    """A full valid document."""
    values = {parameter.path: parameter.default for parameter in parameters_of(route)}
    return _nest({**values, ROUTE_NAME.path: route})


def dump(policy: Policy) -> dict[str, Any]:
    """The full document of a policy: parse(dump(p)) == p."""
    return _nest(policy.values)


def sha256(document: Mapping[str, Any]) -> str:
    """Of the canonical JSON: sorted keys, no blanks, UTF-8."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def apply_overrides(document: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """A copy with values replaced by dotted path. Another `route.name` drops the parameters that the new route does not
    have. Nothing is validated: `parse` does that."""
    result = {key: dict(part) if isinstance(part, dict) else part for key, part in document.items()}
    route = overrides.get(ROUTE_NAME.path)
    if isinstance(route, str) and route in ROUTES and isinstance(result.get("route"), dict):
        known = {parameter.path for parameter in parameters_of(route)}
        result["route"] = {
            key: value
            for key, value in result["route"].items()
            if f"route.{key}" in known or f"route.{key}" not in PARAMETERS
        }
    for path, value in overrides.items():
        section, _, key = path.partition(".")
        if not key:
            result[section] = value
        else:
            part = result.get(section)
            result[section] = {**part, key: value} if isinstance(part, dict) else {key: value}
    return result


def parse(document: object) -> Policy:
    """The policy of a document; keys that are missing take their defaults. InvalidDocument holds every fault."""
    if not isinstance(document, dict):
        raise InvalidDocument([Problem("", shown(document), "the document must be a JSON object")])
    problems: list[Problem] = []
    route = _route_of(document, problems)
    parameters = {parameter.path: parameter for parameter in parameters_of(route)}
    problems += _unknown(document, parameters, route)
    values: dict[str, Any] = {}
    for parameter in parameters.values():
        value = accept(parameter, _given(document, parameter))
        if isinstance(value, Rejected):
            problems.append(Problem(parameter.path, value.shown, value.message))
        else:
            values[parameter.path] = value
    problems += _crossed(values)
    if problems:
        raise InvalidDocument(_unique(problems)[:PROBLEMS_SHOWN])
    return Policy(route=route, values=values)


def values_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every value by its path, defaults filled in, nothing validated: for showing a draft that may be wrong."""
    route = _route_of(dict(document), [])
    values = {parameter.path: _given(document, parameter) for parameter in parameters_of(route)}
    for section, part in document.items():
        if isinstance(part, dict):
            values |= {f"{section}.{key}": value for key, value in part.items()}
    return values


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a document. The rules between fields are beyond it; `parse` has them."""
    sections: dict[str, dict[str, Any]] = {}
    for parameter in COMMON:
        section, _, key = parameter.path.partition(".")
        sections.setdefault(section, {})[key] = _schema_of(parameter)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy document",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "schema": {"const": SCHEMA, "default": SCHEMA},
            "route": {"oneOf": [_route_schema(name) for name in ROUTES]},
            **{
                section: {"type": "object", "additionalProperties": False, "properties": properties}
                for section, properties in sections.items()
            },
        },
    }


def _route_schema(name: str) -> dict[str, Any]:
    route = ROUTES[name]
    own = {parameter.path.partition(".")[2]: _schema_of(parameter) for parameter in route.parameters}
    return {
        "title": route.title,
        "description": route.summary,
        "type": "object",
        "additionalProperties": False,
        # Only the default route may go without its name.
        "required": [] if name == ROUTE_NAME.default else ["name"],
        "properties": {"name": {"const": name}, **own},
    }


_JSON_TYPES = {"int": "integer", "float": "number", "bool": "boolean"}


def _schema_of(parameter: Parameter) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "title": parameter.title,
        "description": parameter.raises,
        "type": _JSON_TYPES.get(parameter.kind),
        "enum": list(parameter.choices) or None,
        "default": parameter.default,
        "minimum": parameter.minimum,
        "maximum": parameter.maximum,
        "x-unit": parameter.unit or None,
        "x-metric": parameter.metric or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": SCHEMA}
    for path, value in values.items():
        section, _, key = path.partition(".")
        document.setdefault(section, {})[key] = value
    return document


def _route_of(document: dict[str, Any], problems: list[Problem]) -> str:
    """The route's name; the default one, with a problem noted, when it is not known."""
    name = _given(document, ROUTE_NAME)
    accepted = accept(ROUTE_NAME, name)
    if isinstance(accepted, Rejected):
        problems.append(_unknown_route(name))
        return str(ROUTE_NAME.default)
    return str(accepted)


def _given(document: Mapping[str, Any], parameter: Parameter) -> Any:
    section, _, key = parameter.path.partition(".")
    part = document.get(section)
    return part.get(key, parameter.default) if isinstance(part, dict) else parameter.default


def _unknown_route(name: object) -> Problem:
    return Problem(ROUTE_NAME.path, shown(name), f"{quoted(name)} is not a known route{_near(name, ROUTES)}")


def _unknown(document: dict[str, Any], parameters: Mapping[str, Parameter], route: str) -> Iterator[Problem]:
    """Faults of the shape: a wrong schema, sections and keys that nobody knows, sections that are no objects."""
    sections = {path.partition(".")[0] for path in parameters}
    for section, part in document.items():
        if section == "schema":
            if type(part) is not int or part != SCHEMA:
                yield Problem("schema", shown(part), f"must be {SCHEMA}: this version of Weir knows no other")
        elif section not in sections:
            yield Problem(shown(str(section)), shown(part), f"unknown section{_near(section, sections | {'schema'})}")
        elif not isinstance(part, dict):
            yield Problem(section, shown(part), "must be an object")
        else:
            yield from _unknown_keys(section, part, parameters, route)


def _unknown_keys(
    section: str, part: dict[str, Any], parameters: Mapping[str, Parameter], route: str
) -> Iterator[Problem]:
    keys = {path.partition(".")[2] for path in parameters if path.startswith(section + ".")}
    for key, value in part.items():
        path = f"{section}.{key}"
        if path in PARAMETERS and path not in parameters:
            owners = " and ".join(PARAMETERS[path].routes)
            yield Problem(path, shown(value), f"is a parameter of {owners}, not of {route}")
        elif key not in keys:
            yield Problem(shown(path), shown(value), f"unknown parameter{_near(key, keys)}")


def _near(name: object, known: Any) -> str:
    """A suggestion, or what there is to choose from."""
    matches = difflib.get_close_matches(str(name)[:60], sorted(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else f"; known are {', '.join(sorted(known))}"


def _crossed(values: Mapping[str, Any]) -> list[Problem]:
    """Rules between fields, told at each field that takes part; silent where one of them is wrong by itself."""
    problems: list[Problem] = []
    warm, heavy = values.get("classes.warm_new_tokens"), values.get("classes.heavy_new_tokens")
    if warm is not None and heavy is not None and warm >= heavy:
        problems += [
            Problem("classes.warm_new_tokens", warm, f"{number(warm)} must be below heavy_new_tokens, {number(heavy)}"),
            Problem(
                "classes.heavy_new_tokens", heavy, f"{number(heavy)} must be above warm_new_tokens, {number(warm)}"
            ),
        ]
    if values.get("route.hit_weight") == 0 and values.get("route.load_weight") == 0:
        message = "hit_weight and load_weight cannot both be 0: every instance would score alike"
        problems += [Problem(path, 0.0, message) for path in ("route.hit_weight", "route.load_weight")]
    return problems


def _unique(problems: list[Problem]) -> list[Problem]:
    """The first of each path: an unknown route is found twice."""
    return list({problem.path: problem for problem in reversed(problems)}.values())[::-1]
