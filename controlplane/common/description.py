"""Descriptions in the declarations of results, read by pydantic when it makes the OpenAPI document.

The processes that compute results import the declarations; pydantic's `Field` would slow their start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Description:
    """The meaning and unit of a TypedDict's field: `Annotated[float, Description("…")]`."""

    text: str

    def __get_pydantic_json_schema__(self, schema: object, make: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
        found = make(schema)
        inherited = {"allOf": [found]} if "$ref" in found else found
        return {**inherited, "description": self.text}
