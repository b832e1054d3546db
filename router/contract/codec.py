"""Values in Redis as JSON with a schema version. Pure."""

import json
from typing import Any

SCHEMA = 1


def encode(value: dict[str, Any]) -> str:
    """JSON with the schema version; NaN is refused (null is how an unknown figure is written)."""
    return json.dumps({"schema": SCHEMA, **value}, separators=(",", ":"), allow_nan=False)


def decode(raw: bytes | str | None) -> dict[str, Any] | None:
    """The value, or None when there is none or it cannot be read (not JSON, not an object, another schema)."""
    if raw is None:
        return None
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return None
    return value
