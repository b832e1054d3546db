"""Field by field differences of two JSON documents. Pure."""

from typing import Any


def flatten(document: dict[str, Any]) -> dict[str, Any]:
    """{"classes": {"a": 1}} → {"classes.a": 1}; the schema number is not a field."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": v for inner, v in flatten(value).items()})
        elif key != "schema":
            flat[key] = value
    return flat


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    before, after = flatten(old), flatten(new)
    paths = [*before, *(path for path in after if path not in before)]
    return {p: (before.get(p), after.get(p)) for p in paths if before.get(p) != after.get(p)}
