"""Pieces that operations share in the OpenAPI document."""

from typing import Annotated, Any

from ninja import Path

ROW_MAX = 2**31 - 1  # what every database holds as an id or a number
Number = Annotated[int, Path(ge=1, le=ROW_MAX)]


def _header(name: str, description: str, max_length: int) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": max_length, "pattern": "^[!-~]+$"}
    return {"in": "header", "name": name, "required": False, "description": description, "schema": schema}


# `openapi_extra=headers(IDEMPOTENT)`: what the middleware and etags.py read from the request.
IDEMPOTENT = _header("Idempotency-Key", "A repeated key gets the first answer again, for 24 hours", 200)
IF_MATCH = _header("If-Match", "The ETag that was read; 412 when it has changed since", 80)


def headers(*parameters: dict[str, Any]) -> dict[str, Any]:
    return {"parameters": list(parameters)}
