"""Reads typed values from builtins and JSON, in any thread. Pure.
msgspec 0.22 examines the fields of a type when a value is first read. A second thread that reads a value meanwhile
would find fields without types and crash the process, so each type is prepared once, by one thread.
"""

from collections.abc import Callable
from functools import cache, partial
from threading import Lock
from typing import Any, TypeVar, cast, overload

import msgspec

Kind = TypeVar("Kind")

_ONE_AT_A_TIME = Lock()


@cache
def _decoder(kind: Any, *, strict: bool = True) -> "msgspec.json.Decoder[Any]":
    with _ONE_AT_A_TIME:
        return msgspec.json.Decoder(kind, strict=strict)


decoder: Callable[..., "msgspec.json.Decoder[Any]"] = _decoder  # by kind; the cache's own type takes no `type[Kind]`


def reader(kind: type[Kind]) -> Callable[[object], Kind]:
    """Return `read_value` of one kind without its call, for code that runs in each request."""
    decoder(kind)
    return partial(msgspec.convert, type=kind)


@overload
def read_value(value: object, kind: type[Kind], *, strict: bool = True, from_attributes: bool = False) -> Kind: ...
@overload
def read_value(value: object, kind: Any, *, strict: bool = True, from_attributes: bool = False) -> Any: ...
def read_value(value: object, kind: Any, *, strict: bool = True, from_attributes: bool = False) -> Any:
    """Convert builtins, or an object with `from_attributes`. Raise msgspec.ValidationError."""
    decoder(kind)
    return msgspec.convert(value, kind, strict=strict, from_attributes=from_attributes)


def read_json(raw: bytes | str, kind: type[Kind], *, strict: bool = True) -> Kind:
    """Parse JSON. Raise msgspec.DecodeError, and UnicodeDecodeError where it is not UTF-8."""
    return cast(Kind, decoder(kind, strict=strict).decode(raw))
