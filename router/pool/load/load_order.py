"""The instances of a large pool by load, kept sorted between decisions. Pure."""

from bisect import bisect_left, insort
from collections.abc import Container, Sequence

from router.policy.value import Value

FEW = 64  # number of changes up to which each is inserted separately
FULL = 1 << 50  # added to the load: once above the limit of KV usage, twice above the limit of requests


class Load(Value, frozen=True):
    prefill_tokens: int
    running: int
    kv_usage: float
    kv_tokens: int
    refused: str  # why the instance takes no requests; empty if it does
    pace: float = 1.0


Key = tuple[int, int, float]  # (request weight in tokens, limit of requests, limit of KV usage)


class LoadOrder:
    """The instances of each group by load, under the limits of a policy. The value of an instance is load · number of
    instances + position, so that sorting the values sorts the instances; −1 means refused.
    """

    def __init__(self, key: Key, loads: Sequence[Load], group_of: Sequence[int], groups: int) -> None:
        self._weight, self._limit, self._kv_limit = key
        self._loads, self._group_of = loads, group_of
        self._full = FULL * len(loads)
        self._positions: dict[int, list[int]] = {}  # positions of each group's able instances
        self._changed: set[int] = set()  # positions whose values do not yet reflect their loads
        self.values = [self._value(position) for position in range(len(loads))]
        self._sorted: list[list[int]] = [[] for _ in range(groups)]
        self._sort()

    def _value(self, position: int) -> int:
        one = self._loads[position]
        if one.refused:
            return -1
        load = one.prefill_tokens + self._weight * one.running
        if one.running >= self._limit:
            load += 2 * FULL
        elif one.kv_usage > self._kv_limit:
            load += FULL
        return load * len(self._loads) + position

    def _sort(self) -> None:
        self._positions.clear()
        for group in self._sorted:
            group.clear()
        for value, number in zip(self.values, self._group_of, strict=True):
            if value >= 0:
                self._sorted[number].append(value)
        for group in self._sorted:
            group.sort()

    def take(self, changed: Sequence[int]) -> None:
        """Note changes. They are sorted in when the order is next used, since not every decision uses it."""
        self._changed.update(changed)

    def settle(self) -> None:
        """Sort in the noted changes."""
        changed, self._changed = self._changed, set()
        if len(changed) <= FEW:
            for position in changed:
                self._move(position)
            return
        for position in changed:
            self.values[position] = self._value(position)
        self._sort()

    def _move(self, position: int) -> None:
        before, now = self.values[position], self._value(position)
        if before == now:
            return
        self.values[position] = now
        if not 0 <= before < self._full or not 0 <= now < self._full:
            self._positions.clear()
        able = self._sorted[self._group_of[position]]
        if before >= 0:
            del able[bisect_left(able, before)]
        if now >= 0:
            insort(able, now)

    def able(self, group: int, out: Container[int]) -> list[int]:
        """Return, ascending, the values of the instances within the limits, or of all instances if
        none is within them.
        """
        count, able = len(self._loads), self._sorted[group]
        if out:
            able = [value for value in able if value % count not in out]
        if not able or able[-1] < self._full:
            return able
        return able[: bisect_left(able, self._full)] or able[: bisect_left(able, 2 * self._full)] or able

    def positions(self, group: int, out: Container[int]) -> list[int]:
        """Return the positions of the able instances, ascending."""
        kept = self._positions.get(group)
        if kept is None:
            count = len(self._loads)
            kept = self._positions[group] = sorted(value % count for value in self.able(group, ()))
        return [position for position in kept if position not in out] if out else kept

    def is_able(self, position: int) -> bool:
        return 0 <= self.values[position] < self._full
