"""The base of what the control plane publishes for routers: each value carries the order of its reading. Pure."""

from typing import Annotated, ClassVar, Self

from msgspec import Meta
from msgspec.structs import replace

from router.contract.redis.codec import RedisValue

LARGEST_ORDER = 2**53  # the largest whole number of Redis' scripts

Order = Annotated[int, Meta(ge=0, le=LARGEST_ORDER)]


class OrderedValue(RedisValue, frozen=True, kw_only=True):
    """The greater of two orders of a key was read later from the database."""

    TIME: ClassVar[str] = "at"  # the field that says when the value was written

    order: Order = 0  # 0: written by version 0.1.0, which gave none

    def stamped(self, order: int, at: float) -> Self:
        return replace(self, order=order, **{self.TIME: at})

    def says_the_same(self, other: "OrderedValue | None") -> bool:
        """Whenever the two were read and written."""
        return other is not None and self.stamped(0, 0.0) == other.stamped(0, 0.0)
