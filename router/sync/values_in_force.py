"""Which published value of each key is in force: one that was read earlier from the database never replaces it. Pure.

A router keeps what it knows over a loss of Redis, which may come back with older values from its disk.
"""

from msgspec.structs import replace

from router.contract.redis.codec import OrderedValue


class ValuesInForce:
    def __init__(self) -> None:
        self._held: dict[str, OrderedValue] = {}
        self.refused: dict[str, int] = {}  # order in force of each key for which Redis holds an older value
        self.older = 0  # values refused since the start

    def take(self, key: str, value: OrderedValue) -> bool:
        """False: it is older than the one in force. One without an order, of version 0.1.0, is taken."""
        held = self._held.get(key)
        if held is not None and 0 < value.order < held.order and not value.says_the_same(held):
            self.refused[key] = held.order
            self.older += 1
            return False
        self.refused.pop(key, None)
        self._held[key] = value if held is None else replace(value, order=max(value.order, held.order))
        return True

    def missing(self, key: str) -> None:
        """Redis holds none: the one in force stays."""
        self.refused.pop(key, None)

    def forget(self, key: str) -> None:
        """Its pool is no more; declared again, it begins anew."""
        self._held.pop(key, None)
        self.refused.pop(key, None)
