"""Of a key that is given twice readers keep the last silently; here it is refused."""

from collections.abc import Hashable, Iterable
from typing import Any


def unique_keys(pairs: Iterable[tuple[Hashable, Any]]) -> dict[Any, Any]:
    """For `json.loads(…, object_pairs_hook=unique_keys)`. ValueError names the key."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found
