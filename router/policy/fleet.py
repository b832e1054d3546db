"""The instances of a pool as columns, one per field, for decisions to compute on.

The router keeps one from decision to decision and replaces changed instances, so that columns are built once.
A decision therefore keeps neither the fleet nor a column, only its instances, which never change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter
from typing import Any, overload

from router.policy.types import InstanceState

COLUMNS_KEPT = 32  # further columns belong to policies no longer in force

InstanceValue = Callable[..., Any]  # (instance, further arguments) → value


class FleetColumns(Sequence[InstanceState]):
    """Columns of plain fields, and what is asked of all instances, are attributes that are made when they are first
    read: a property would cost a call each time."""

    __slots__ = (
        *("_columns", "_kept", "_order", "_plain", "_positions", "_seldom", "_whole", "instances"),
        *("is_divided", "is_paced"),
        *("block_size", "cached_tokens", "connector", "decodes", "ids", "kv_usage", "left_out", "pace"),
        *("prefill_tokens", "refused", "role", "running", "waiting"),
    )

    is_paced: bool  # whether some instances are faster than others
    is_divided: bool  # whether some instances do only a part of a request
    ids: list[str]
    cached_tokens: list[int]
    running: list[int]  # R_i
    waiting: list[int]  # q_i
    decodes: list[int]  # D_i
    prefill_tokens: list[int]  # PP_i
    pace: list[float]
    block_size: list[int]  # B_i
    kv_usage: list[float]  # u_i
    refused: list[str]
    role: list[str]
    connector: list[str]

    def __init__(self, instances: Iterable[InstanceState]) -> None:
        self.instances = list(instances)
        self.left_out: Mapping[str, int] = {}  # pool instances not included, by reason
        self._columns: dict[tuple[Any, ...], list[Any]] = {}
        self._kept: list[tuple[list[Any], InstanceValue]] = []  # each column with its function
        self._plain: list[tuple[list[Any], InstanceValue]] = []  # columns of plain fields, each with its function
        self._seldom: list[tuple[list[Any], InstanceValue]] = []  # rarely changing columns, each with its function
        self._positions: dict[str, int] | None = None
        self._order: list[int] | None = None
        self._whole: tuple[FleetColumns, Callable[[list[Any]], list[Any]]] | None = None

    def __getattr__(self, name: str) -> Any:
        """Compute the value of a slot on first access."""
        made: bool | list[Any]
        if name in _PLAIN:
            made = self._field(name, _PLAIN[name])
        elif name == "is_paced":
            made = self._whole[0].is_paced if self._whole is not None else _some_paced(self.pace)
        elif name == "is_divided":
            made = _some_divided(self.role)
        else:
            raise AttributeError(name)
        setattr(self, name, made)
        return made

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
        """Return the indexes of the instances in the order of ids."""
        if self._order is None:
            self._order = sorted(range(len(self.instances)), key=self.ids.__getitem__)
        return self._order

    def position(self, name: str | None) -> int | None:
        if name is None:
            return None
        if self._positions is None:
            self._positions = {one: position for position, one in enumerate(self.ids)}
        return self._positions.get(name)

    def column(self, value: InstanceValue, *given: float) -> list[Any]:
        """Return `value(instance, *given)` of each; the column is kept, so `value` must be pure."""
        key = (value, *given)
        made = self._columns.get(key)
        if made is None:
            made = self._columns[key] = self._make(key)
        return made

    def _field(self, name: str, of: InstanceValue) -> list[Any]:
        if self._whole is not None:
            whole, part = self._whole
            return part(getattr(whole, name))
        made = list(map(of, self.instances))
        (self._seldom if name in SELDOM else self._plain).append((made, of))
        return made

    def _make(self, key: tuple[Any, ...]) -> list[Any]:
        value, *given = key
        of = (lambda instance: value(instance, *given)) if given else value
        if self._whole is not None:
            whole, part = self._whole
            made = part(whole.column(value, *given))
        else:
            made = list(map(value, self.instances, *map(repeat, given)))
        self._kept.append((made, of))
        return made

    def replace(self, position: int, instance: InstanceState) -> None:
        """Replace the instance at a position."""
        before = self.instances[position]
        self.instances[position] = instance
        if len(self._columns) > COLUMNS_KEPT:
            self._columns.clear()
            self._kept.clear()
        for column, of in self._plain:
            column[position] = of(instance)
        for column, of in self._kept:
            column[position] = of(instance)
        if (
            instance.pace == before.pace
            and instance.role == before.role
            and instance.block_size == before.block_size
            and instance.connector == before.connector
            and instance.id == before.id
        ):  # one by one: tuples of them would take three times as long
            return
        for column, of in self._seldom:
            column[position] = of(instance)
        self.is_paced, self.is_divided = _some_paced(self.pace), _some_divided(self.role)

    def only(self, stays: Sequence[bool]) -> "FleetColumns":
        return self._part(lambda column: list(compress(column, stays)))

    def without(self, position: int) -> "FleetColumns":
        return self._part(lambda column: dropped(column, position))

    def at(self, positions: Sequence[int]) -> "FleetColumns":
        """Return the fleet of the instances at the positions; `is_paced` is that of these alone."""
        fleet = self._part(lambda column: list(map(column.__getitem__, positions)))
        fleet.is_paced = _some_paced(fleet.pace)
        return fleet

    def _part(self, part: Callable[[list[Any]], list[Any]]) -> "FleetColumns":
        fleet = FleetColumns(())
        fleet.instances, fleet._whole = part(self.instances), (self, part)
        return fleet


def _some_paced(pace: list[float]) -> bool:
    return any(map((1.0).__ne__, pace))


def _some_divided(role: list[str]) -> bool:
    return any(map("both".__ne__, role))


def dropped(column: list[Any], position: int) -> list[Any]:
    return column[:position] + column[position + 1 :]


def fleet_of(instances: Sequence[InstanceState]) -> FleetColumns:
    return instances if isinstance(instances, FleetColumns) else FleetColumns(instances)


SELDOM = {"ids": "id", "pace": "pace", "block_size": "block_size", "role": "role", "connector": "connector"}
_OFTEN = ("cached_tokens", "running", "waiting", "decodes", "prefill_tokens", "kv_usage", "refused")
_PLAIN = {name: attrgetter(field) for name, field in (*SELDOM.items(), *zip(_OFTEN, _OFTEN, strict=True))}
