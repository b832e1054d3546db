"""Values in Redis: JSON with a schema version, decoded in one step. Pure.
A value is a struct whose tag is its schema version. Readers ignore unknown fields, so newer writers may add fields. A
field with a new name or meaning needs a new version, and readers that convert values of the previous version.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

from router.contract.values.reading import decoder

LARGEST_ORDER = 2**53  # largest integer in Redis scripts

Order = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ORDER)]


class RedisValue(msgspec.Struct, frozen=True, tag_field="schema"):
    """Base of every value in Redis; the docstrings of its subclasses give key, writer and units."""


class OrderedValue(RedisValue, frozen=True, kw_only=True):
    """Base of the values that the control plane publishes for routers. Of two values of a key, the one with the greater
    order was read from the database later."""

    TIME: ClassVar[str] = "at"  # field with the time of writing

    order: Order = 0  # 0 if a script without an order wrote the value

    def stamped(self, order: int, at: float) -> Self:
        return replace(self, order=order, **{self.TIME: at})

    def says_the_same(self, other: "OrderedValue | None") -> bool:
        """Return whether two values are equal except for order and time."""
        return other is not None and self.stamped(0, 0.0) == other.stamped(0, 0.0)


Value = TypeVar("Value", bound=RedisValue)


class Unreadable(ValueError):
    """An unusable value in Redis; the message says where and why."""


# Encodes a value; NaN and infinity become null, like every unknown number.
encode: Callable[[RedisValue], bytes] = msgspec.json.encode


def read(kind: type[Value], raw: bytes | str) -> Value:
    """Decode a value. Raise Unreadable."""
    try:
        return cast(Value, decoder(kind).decode(raw))
    except ValueError as error:
        raise Unreadable(str(error)) from None


def decode(kind: type[Value], raw: bytes | str | None) -> Value | None:
    """Decode a value; None if it is missing or unreadable."""
    if raw is None:
        return None
    try:
        return read(kind, raw)
    except Unreadable:
        return None
