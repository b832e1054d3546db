"""The published value in force for each key; a value read earlier from the database never replaces it. Pure.

A router keeps its values when Redis is lost, as Redis may return with older ones from its disk.
"""

from msgspec.structs import replace

from router.contract.redis.codec import OrderedValue


class ValuesInForce:
    def __init__(self) -> None:
        self._held: dict[str, OrderedValue] = {}
        self.refused: dict[str, int] = {}  # order in force of keys for which Redis holds an older value
        self.older = 0  # values refused since the start

    def take(self, key: str, value: OrderedValue) -> bool:
        """Take a value; False if it is older than the one in force. Values without an order (of scripts) are
        taken."""
        held = self._held.get(key)
        if held is not None and 0 < value.order < held.order and not value.says_the_same(held):
            self.refused[key] = held.order
            self.older += 1
            return False
        self.refused.pop(key, None)
        self._held[key] = value if held is None else replace(value, order=max(value.order, held.order))
        return True

    def missing(self, key: str) -> None:
        """Note that Redis holds no value: the one in force stays."""
        self.refused.pop(key, None)

    def forget(self, key: str) -> None:
        """Forget the key of a removed pool, which begins anew if declared again."""
        self._held.pop(key, None)
        self.refused.pop(key, None)
