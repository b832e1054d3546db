"""The instances of a pool as columns, one per field, for decisions to compute on.

The router keeps one from decision to decision and replaces the instances that change, so that columns are made once.
A decision therefore keeps nothing of a fleet, neither it nor a column, only its instances, which never change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter
from typing import Any, overload

from router.policy.types import InstanceState

COLUMNS_KEPT = 32  # more are left over from policies that are no longer in force

InstanceValue = Callable[..., Any]  # value of an instance, from it and further arguments


class FleetColumns(Sequence[InstanceState]):
    __slots__ = ("_columns", "_divided", "_kept", "_order", "_paced", "_positions", "_whole", "instances", "left_out")

    def __init__(self, instances: Iterable[InstanceState]) -> None:
        self.instances = list(instances)
        self.left_out: Mapping[str, int] = {}  # instances of the pool that are not among them, by the reason
        self._columns: dict[tuple[Any, ...], list[Any]] = {}
        self._kept: list[tuple[list[Any], InstanceValue]] = []  # each column with its function
        self._positions: dict[str, int] | None = None
        self._order: list[int] | None = None
        self._paced: bool | None = None
        self._divided: bool | None = None
        self._whole: tuple[FleetColumns, Callable[[list[Any]], list[Any]]] | None = None

    @overload
    def __getitem__(self, position: int) -> InstanceState: ...
    @overload
    def __getitem__(self, position: slice) -> list[InstanceState]: ...
    def __getitem__(self, position: int | slice) -> InstanceState | list[InstanceState]:
        return self.instances[position]

    def __len__(self) -> int:
        return len(self.instances)

    def __iter__(self) -> Iterator[InstanceState]:
        return iter(self.instances)

    @property
    def order(self) -> list[int]:
        """Their indexes in the order of ids."""
        if self._order is None:
            self._order = sorted(range(len(self.instances)), key=self.ids.__getitem__)
        return self._order

    @property
    def is_paced(self) -> bool:
        """Some are faster than others."""
        if self._paced is None:
            if self._whole is not None:
                self._paced = self._whole[0].is_paced
            else:
                self._paced = any(map((1.0).__ne__, map(_PACE[0], self.instances)))
        return self._paced

    @property
    def is_divided(self) -> bool:
        """Some do only a part of a request."""
        if self._divided is None:
            self._divided = any(map("both".__ne__, self.role))
        return self._divided

    def position(self, name: str | None) -> int | None:
        if name is None:
            return None
        if self._positions is None:
            self._positions = {one: position for position, one in enumerate(self.ids)}
        return self._positions.get(name)

    def column(self, value: InstanceValue, *given: float) -> list[Any]:
        """`value(instance, *given)` of each; read-only and kept, so `value` must be a constant function."""
        key = (value, *given)
        return self._columns.get(key) or self._make(key)

    def _make(self, key: tuple[Any, ...]) -> list[Any]:
        value, *given = key
        of = (lambda instance: value(instance, *given)) if given else value
        if self._whole is not None:
            whole, part = self._whole
            made = part(whole.column(value, *given))
        else:
            made = list(map(value, self.instances, *map(repeat, given)))
        self._columns[key] = made
        self._kept.append((made, of))
        return made

    def replace(self, position: int, instance: InstanceState) -> None:
        """What has become of the instance there."""
        before = self.instances[position]
        if instance.pace != before.pace:
            self._paced = None
        if instance.role != before.role:
            self._divided = None
        self.instances[position] = instance
        if len(self._columns) > COLUMNS_KEPT:
            self._columns.clear()
            self._kept.clear()
        for column, of in self._kept:
            column[position] = of(instance)

    def only(self, stays: Sequence[bool]) -> "FleetColumns":
        return self._part(lambda column: list(compress(column, stays)))

    def without(self, position: int) -> "FleetColumns":
        return self._part(lambda column: dropped(column, position))

    def at(self, positions: Sequence[int]) -> "FleetColumns":
        """Those at the positions. Whether some are faster than others goes by these alone."""
        fleet = self._part(lambda column: list(map(column.__getitem__, positions)))
        fleet._paced = any(map((1.0).__ne__, fleet.pace))
        return fleet

    def _part(self, part: Callable[[list[Any]], list[Any]]) -> "FleetColumns":
        fleet = FleetColumns(())
        fleet.instances, fleet._whole = part(self.instances), (self, part)
        return fleet

    # Plain fields

    @property
    def ids(self) -> list[str]:
        return self._columns.get(_ID) or self._make(_ID)

    @property
    def cached_tokens(self) -> list[int]:
        return self._columns.get(_CACHED) or self._make(_CACHED)

    @property
    def running(self) -> list[int]:
        """R_i"""
        return self._columns.get(_RUNNING) or self._make(_RUNNING)

    @property
    def waiting(self) -> list[int]:
        """q_i"""
        return self._columns.get(_WAITING) or self._make(_WAITING)

    @property
    def decodes(self) -> list[int]:
        """D_i"""
        return self._columns.get(_DECODES) or self._make(_DECODES)

    @property
    def prefill_tokens(self) -> list[int]:
        """PP_i"""
        return self._columns.get(_PREFILL) or self._make(_PREFILL)

    @property
    def pace(self) -> list[float]:
        return self._columns.get(_PACE) or self._make(_PACE)

    @property
    def block_size(self) -> list[int]:
        """B_i"""
        return self._columns.get(_BLOCK_SIZE) or self._make(_BLOCK_SIZE)

    @property
    def kv_usage(self) -> list[float]:
        """u_i"""
        return self._columns.get(_KV_USAGE) or self._make(_KV_USAGE)

    @property
    def refused(self) -> list[str]:
        return self._columns.get(_REFUSED) or self._make(_REFUSED)

    @property
    def role(self) -> list[str]:
        return self._columns.get(_ROLE) or self._make(_ROLE)

    @property
    def connector(self) -> list[str]:
        return self._columns.get(_CONNECTOR) or self._make(_CONNECTOR)


def dropped(column: list[Any], position: int) -> list[Any]:
    return column[:position] + column[position + 1 :]


def fleet_of(instances: Sequence[InstanceState]) -> FleetColumns:
    return instances if isinstance(instances, FleetColumns) else FleetColumns(instances)


_ID = (attrgetter("id"),)
_CACHED = (attrgetter("cached_tokens"),)
_RUNNING = (attrgetter("running"),)
_WAITING = (attrgetter("waiting"),)
_DECODES = (attrgetter("decodes"),)
_PREFILL = (attrgetter("prefill_tokens"),)
_PACE = (attrgetter("pace"),)
_BLOCK_SIZE = (attrgetter("block_size"),)
_KV_USAGE = (attrgetter("kv_usage"),)
_REFUSED = (attrgetter("refused"),)
_ROLE = (attrgetter("role"),)
_CONNECTOR = (attrgetter("connector"),)
