"""The document's JSON Schema, from the definitions of its parameters."""

from router.contract.values.json_value import JsonObject
from router.policy.schema.document import SCHEMA
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import COMMON, STRATEGY_NAME
from router.policy.strategies import STRATEGIES

_TYPES = {"int": "integer", "float": "number", "bool": "boolean"}


def json_schema() -> JsonObject:
    """Return a document's JSON Schema (2020-12), without the rules between fields, which `document.parse` checks."""
    sections: dict[str, JsonObject] = {}
    for parameter in COMMON:
        section, _, key = parameter.path.partition(".")
        sections.setdefault(section, {})[key] = _value(parameter)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy document",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "schema": {"const": SCHEMA, "default": SCHEMA},
            "strategy": {"oneOf": [_strategy(name) for name in STRATEGIES]},
            **{section: _object(properties) for section, properties in sections.items()},
        },
    }


def _strategy(name: str) -> JsonObject:
    strategy = STRATEGIES[name]
    own = {parameter.path.partition(".")[2]: _value(parameter) for parameter in strategy.parameters}
    return {
        "title": strategy.title,
        "description": strategy.summary,
        **_object({"name": {"const": name}, **own}),
        # Only the default strategy may omit its name.
        "required": [] if name == STRATEGY_NAME.default else ["name"],
    }


def _object(properties: JsonObject) -> JsonObject:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(parameter: Parameter) -> JsonObject:
    facts: JsonObject = {
        "title": parameter.title,
        "description": parameter.help,
        "type": _TYPES.get(parameter.kind),
        "enum": list(parameter.choices) or None,
        "default": parameter.default,
        "minimum": parameter.minimum,
        "maximum": parameter.maximum,
        "x-unit": parameter.unit or None,
        "x-metric": parameter.metric or None,
    }
    return {key: value for key, value in facts.items() if value is not None}
