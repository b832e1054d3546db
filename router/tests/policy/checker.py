"""Validates against the part of JSON Schema that Weir's own schema uses, without another package."""

import math
from typing import Any


def valid(schema: dict[str, Any], value: Any) -> bool:
    unknown = set(schema) - set(RULES) - {"$schema", "title", "description", "default", "x-unit", "x-metric"}
    assert not unknown, f"the checker does not know {unknown}"
    return all(RULES[key](schema, value) for key in schema if key in RULES)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and type(one) is type(other) and bool(one == other)


TYPES = {
    "object": lambda value: isinstance(value, dict),
    "number": is_number,
    "integer": lambda value: is_number(value) and value == int(value),
    "boolean": lambda value: isinstance(value, bool),
}
RULES = {
    "type": lambda schema, value: TYPES[schema["type"]](value),
    "const": lambda schema, value: same(value, schema["const"]),
    "enum": lambda schema, value: any(same(value, choice) for choice in schema["enum"]),
    "minimum": lambda schema, value: not is_number(value) or value >= schema["minimum"],
    "maximum": lambda schema, value: not is_number(value) or value <= schema["maximum"],
    "required": lambda schema, value: not isinstance(value, dict) or all(key in value for key in schema["required"]),
    "oneOf": lambda schema, value: sum(valid(option, value) for option in schema["oneOf"]) == 1,
    "properties": lambda schema, value: (
        not isinstance(value, dict)
        or all(valid(part, value[key]) for key, part in schema["properties"].items() if key in value)
    ),
    "additionalProperties": lambda schema, value: (
        not isinstance(value, dict) or set(value) <= set(schema["properties"])
    ),
}
