"""Descriptions in the declarations of results, which pydantic reads when it builds the OpenAPI document.
Processes that compute results import the declarations, and pydantic's `Field` would slow down their start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Configuration of a dataclass whose fields are in every answer, even at their defaults: OpenAPI lists them as required
ALWAYS_SENT: Any = {"json_schema_serialization_defaults_required": True}


@dataclass(frozen=True, slots=True)
class Description:
    """The meaning and unit of a TypedDict's field: `Annotated[float, Description("…")]`."""

    text: str

    def __get_pydantic_json_schema__(self, schema: object, make: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
        found = make(schema)
        inherited = {"allOf": [found]} if "$ref" in found else found
        return {**inherited, "description": self.text}
