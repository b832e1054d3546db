"""Compares two JSON documents field by field. Pure."""

from router.contract.values.json_value import Json, JsonObject


def flatten(document: JsonObject) -> JsonObject:
    """Flatten a document: {"classes": {"a": 1}} → {"classes.a": 1}; the schema number is not a field."""
    flat: JsonObject = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": v for inner, v in flatten(value).items()})
        elif key != "schema":
            flat[key] = value
    return flat


def differences(old: JsonObject, new: JsonObject) -> dict[str, tuple[Json, Json]]:
    before, after = flatten(old), flatten(new)
    paths = [*before, *(path for path in after if path not in before)]
    return {p: (before.get(p), after.get(p)) for p in paths if before.get(p) != after.get(p)}


def audited_change(old: JsonObject, new: JsonObject) -> tuple[JsonObject, JsonObject]:
    """Return the fields that differ, before and after. This keeps entries small for documents that are saved often."""
    found = differences(old, new)
    return {path: pair[0] for path, pair in found.items()}, {path: pair[1] for path, pair in found.items()}
