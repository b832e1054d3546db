"""JSON of unknown shape, each value of which must be checked before use."""

from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, "Json"]
