"""Values in Redis: JSON with a schema version, one decode per value. Pure.

A value is a struct whose tag is its schema version. Fields that a reader does not know are ignored, so a newer writer
may add some; a field with a new name or meaning needs a new version and a step in `UPGRADES` for each older one.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

LARGEST_ORDER = 2**53  # the largest whole number of Redis' scripts

Order = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ORDER)]
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]  # from one schema version to the next


class RedisValue(msgspec.Struct, frozen=True, tag_field="schema"):
    """Base of every value in Redis; its subclasses name the key, the writer and the units."""

    UPGRADES: ClassVar[dict[int, Upgrade]] = {}  # by the version that a step starts from


class OrderedValue(RedisValue, frozen=True, kw_only=True):
    """Base of what the control plane publishes for routers. The greater of two orders of a key was read later from the
    database."""

    TIME: ClassVar[str] = "at"  # the field that says when the value was written

    order: Order = 0  # 0: written by version 0.1.0, which gave none

    def stamped(self, order: int, at: float) -> Self:
        return replace(self, order=order, **{self.TIME: at})

    def says_the_same(self, other: "OrderedValue | None") -> bool:
        """True if the two are equal, apart from their orders and times."""
        return other is not None and self.stamped(0, 0.0) == other.stamped(0, 0.0)


Value = TypeVar("Value", bound=RedisValue)


class Unreadable(ValueError):
    """A value in Redis that cannot be used; the message says where and why."""


def encode(value: RedisValue) -> bytes:
    """NaN and infinity become null, as every unknown number."""
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
    """None when there is no value or it is unreadable."""
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
    """None when no chain of steps leads to the current version."""
    current = kind.__struct_config__.tag
    try:
        value = msgspec.json.decode(raw, type=dict[str, Any])
        while (version := int(value["schema"])) != current:
            value = {**kind.UPGRADES[version](value), "schema": version + 1}
        return msgspec.convert(value, kind)
    except (ValueError, KeyError, TypeError):
        return None
