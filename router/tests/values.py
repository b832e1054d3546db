"""Values in Redis as plain dictionaries: as another release may write them, and as tests read them."""

import json
from typing import Any


def stored(value: dict[str, Any]) -> str:
    return json.dumps({"schema": 1, **value}, separators=(",", ":"), allow_nan=False)


def loaded(raw: bytes | str | None) -> dict[str, Any] | None:
    value = None if raw is None else json.loads(raw)
    return value if isinstance(value, dict) else None
