"""JsonObjects and parameter paths of older schemas, brought to the current schema. Pure.

A stored document keeps its text and its sha256; every reader upgrades it first, so no data migration is needed. A new
schema is one more function in `STEPS`.
"""

from collections.abc import Callable

from router.contract.fields import quoted, shown
from router.contract.json_value import JsonObject
from router.contract.problem import InvalidDocument, Problem

SCHEMA = 2


def _rename_route(document: JsonObject) -> JsonObject:
    """1 → 2: the section `route` is called `strategy`."""
    if "strategy" in document:
        return document  # with both, `parse` reports the old one as unknown
    return {upgrade_path(section): part for section, part in document.items()}


STEPS: dict[int, Callable[[JsonObject], JsonObject]] = {1: _rename_route}


def upgrade(document: JsonObject) -> JsonObject:
    """The document in the current schema, its values unchecked. InvalidDocument when its schema is unknown."""
    schema = document.get("schema", 1 if "route" in document else SCHEMA)
    if type(schema) is not int or schema not in (*STEPS, SCHEMA):  # true is not 1
        message = f"{quoted(schema)} is not a schema of policy documents"
        raise InvalidDocument([Problem("schema", shown(schema), message, f"{min(STEPS)} to {SCHEMA}")])
    for step in range(schema, SCHEMA):
        document = {**STEPS[step](document), "schema": step + 1}
    return document


def upgrade_if_known(document: JsonObject) -> JsonObject:
    """For showing a document that may be wrong."""
    try:
        return upgrade(document)
    except InvalidDocument:
        return document


def upgrade_path(path: str) -> str:
    """The path that a parameter has in the current schema. Paths carry no schema: no path may get a second meaning."""
    section, dot, key = path.partition(".")
    return f"strategy{dot}{key}" if section == "route" else path
