"""Values in Redis: JSON with a schema version, one decode per value. Pure.

A value is a struct whose tag is its schema version. Readers ignore unknown fields, so newer writers may add some; a
field with a new name or meaning needs a new version and a step in `UPGRADES` for each older one.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

LARGEST_ORDER = 2**53  # largest whole number in Redis' scripts

Order = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ORDER)]
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]  # from one schema version to the next


class RedisValue(msgspec.Struct, frozen=True, tag_field="schema"):
    """Base of every value in Redis; its subclasses name the key, the writer and the units."""

    UPGRADES: ClassVar[dict[int, Upgrade]] = {}  # steps by the version that they start from


class OrderedValue(RedisValue, frozen=True, kw_only=True):
    """Base of what the control plane publishes for routers. The greater of two orders of a key was read later from the
    database."""

    TIME: ClassVar[str] = "at"  # field with the time of writing

    order: Order = 0  # 0: written by version 0.1.0, without an order

    def stamped(self, order: int, at: float) -> Self:
        return replace(self, order=order, **{self.TIME: at})

    def says_the_same(self, other: "OrderedValue | None") -> bool:
        """Return True if two values are equal except for order and time."""
        return other is not None and self.stamped(0, 0.0) == other.stamped(0, 0.0)


Value = TypeVar("Value", bound=RedisValue)


class Unreadable(ValueError):
    """A value in Redis that cannot be used; the message says where and why."""


def encode(value: RedisValue) -> bytes:
    """Encode a value; NaN and infinity become null, like every unknown number."""
    return msgspec.json.encode(value)


def read(kind: type[Value], raw: bytes | str) -> Value:
    """Raises Unreadable."""
    try:
        return cast(Value, _decoder(kind).decode(raw))
    except ValueError as error:
        upgraded = _upgraded(kind, raw) if kind.UPGRADES else None
        if upgraded is None:
            raise Unreadable(str(error)) from None
        return upgraded


def decode(kind: type[Value], raw: bytes | str | None) -> Value | None:
    """Decode a value; None if it is missing or unreadable."""
    if raw is None:
        return None
    try:
        return read(kind, raw)
    except Unreadable:
        return None


@cache
def _decoder(kind: type[Value]) -> "msgspec.json.Decoder[Value]":
    return msgspec.json.Decoder(kind)


def _upgraded(kind: type[Value], raw: bytes | str) -> Value | None:
    """Upgrade a value; None if no chain of steps leads to the current version."""
    current = kind.__struct_config__.tag
    try:
        value = msgspec.json.decode(raw, type=dict[str, Any])
        while (version := int(value["schema"])) != current:
            value = {**kind.UPGRADES[version](value), "schema": version + 1}
        return msgspec.convert(value, kind)
    except (ValueError, KeyError, TypeError):
        return None
