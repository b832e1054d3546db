"""Reads fields of a request body, with vLLM's errors for invalid values. Unknown fields are ignored."""

from typing import Any, cast

import msgspec
import orjson

from fleet.simengine.http.errors import ApiError
from fleet.simengine.kv.connector import TransferParams
from router.contract.sim_media import as_message, is_media, stand_in
from router.contract.values.reading import read_value

Body = dict[str, Any]
LONGEST_SALT = 128  # characters
_ROOM = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
_NOT_IN_SALTS = frozenset("@/\\\0")


def parse(raw: bytes) -> Body:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "Input should be a valid dictionary")
    return cast(Body, body)


def integer(body: Body, name: str, default: int | None, *, minimum: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"{name}: Input should be a valid integer, got {value!r:.80}.", param=name)
    if minimum is not None and value < minimum:
        raise ApiError(400, f"{name} must be at least {minimum}, got {value}.", param=name)
    return value


def flag(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ApiError(400, f"{name}: Input should be a valid boolean, got {value!r:.80}.", param=name)
    return value


def mapping(body: Body, name: str) -> Body:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(400, f"{name}: Input should be a valid dictionary, got {value!r:.80}.", param=name)
    return value


def transfer_params(body: Body, name: str) -> TransferParams:
    """Read the parameters inside `name`, and SGLang's next to it."""
    room = {field: body[field] for field in _ROOM if field in body}
    try:
        return read_value(mapping(body, name) | room, TransferParams)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{name}: {error}.", param=name) from None


def strings(body: Body, name: str) -> tuple[str, ...]:
    """Read one string or a list of strings; empty strings are ignored."""
    value = body.get(name)
    values = [value] if isinstance(value, str) else value or []
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise ApiError(400, f"{name}: Input should be a string or a list of strings, got {value!r:.80}.", param=name)
    return tuple(item for item in values if item)


def cache_salt(body: Body) -> str:
    """Read the salt, checked as in vLLM; "" without one."""
    value = body.get("cache_salt")
    if value is None:
        return ""
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_SALT or not _NOT_IN_SALTS.isdisjoint(value):
        allowed = f"1 to {LONGEST_SALT} characters without '@', '/', '\\\\' and NUL"
        raise ApiError(400, f"cache_salt: Input should be {allowed}, got {value!r:.80}.", param="cache_salt")
    return value


def text_of(content: object, where: str) -> str:
    """Return the text of a message: a string, or a list of parts with text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: Input should be a string or a list of parts, got {content!r:.80}.", param=where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ApiError(400, f"{where}: Input should be an object, got {part!r:.80}.", param=where)
    kind = str(part.get("type", "text"))
    if kind == "tool_use":
        return orjson.dumps(part.get("input")).decode()
    if kind == "tool_result":
        return text_of(part.get("content"), f"{where}.content")
    if is_media(kind):
        return stand_in(part)
    text = part.get("text", part.get("thinking", ""))
    if not isinstance(text, str):
        raise ApiError(400, f"{where}: the model takes no part of type {kind!r}.", param=where)
    return text


def messages(body: Body, name: str = "messages") -> list[tuple[str, str]]:
    """Return (role, text) of each message."""
    value = body.get(name)
    if not isinstance(value, list) or not value:
        raise ApiError(400, f"{name}: Field required, a list with at least one message.", param=name)
    items = map(as_message, value) if name == "input" else value
    return [_message(item, f"{name}[{index}]") for index, item in enumerate(items)]


def _message(item: object, where: str) -> tuple[str, str]:
    if not isinstance(item, dict) or not isinstance(item.get("role"), str):
        raise ApiError(400, f"{where}: Input should be a message with a role, got {item!r:.80}.", param=where)
    return item["role"], text_of(item.get("content"), f"{where}.content")
