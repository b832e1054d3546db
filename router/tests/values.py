"""Values in Redis as plain dictionaries: as another release may write them, and as tests read them."""

import json
from typing import Any

from msgspec import convert

from router.contract.redis.receipt import Receipt


def stored(value: dict[str, Any]) -> str:
    return json.dumps({"schema": 1, **value}, separators=(",", ":"), allow_nan=False)


def loaded(raw: bytes | str | None) -> dict[str, Any] | None:
    value = None if raw is None else json.loads(raw)
    return value if isinstance(value, dict) else None


def receipt_of(value: dict[str, Any]) -> Receipt:
    """As written by a router of this release."""
    return convert({"request_id": "r", "at": 0.0, "schema": Receipt.__struct_config__.tag, **value}, Receipt)
