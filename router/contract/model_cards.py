"""An engine's list at /v1/models: the model names that it serves and the longest sequence of each. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from router.contract.values.json_value import JsonObject

MOST_MODELS = 1000
LONGEST_NAME = 256  # characters
Lengths = Mapping[str, int | None]  # tokens by name; None if not reported


def cards(body: bytes) -> list[JsonObject]:
    """Parse a list of models. Raise ValueError for anything else."""
    document = orjson.loads(body)
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list) or not all(isinstance(card, dict) and "id" in card for card in data):
        raise ValueError("no list of models")
    return data[:MOST_MODELS]


def lengths(given: Iterable[JsonObject]) -> dict[str, int | None]:
    return {str(card["id"])[:LONGEST_NAME]: _length(card.get("max_model_len")) for card in given}


def least(given: Iterable[int | None]) -> int | None:
    return min((length for length in given if length is not None), default=None)


def _length(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
