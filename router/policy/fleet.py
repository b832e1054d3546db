"""The instances of a pool as columns, one per field, for decisions to compute on.

The router keeps one from decision to decision and replaces changed instances, so that columns are built once.
A decision therefore keeps neither the fleet nor a column, only its instances, which never change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter, itemgetter
from typing import Any, overload

from router.policy.types import InstanceState

COLUMNS_KEPT = 32  # columns beyond this number belong to policies that are no longer live

InstanceValue = Callable[..., Any]  # (instance, further arguments) → value


class FleetColumns(Sequence[InstanceState]):
    """Columns of plain fields, and facts about all instances, are attributes: a property would cost a call per
    access."""

    __slots__ = (
        *("_columns", "_kept", "_order", "_positions", "instances", "is_divided", "is_paced", "left_out"),
        *("cached_tokens", "decodes", "kv_usage", "prefill_tokens", "refused", "running", "waiting"),
        *("block_size", "connector", "ids", "kv_tokens", "pace", "role"),
    )

    is_paced: bool  # whether some instances are faster than others
    is_divided: bool  # whether some instances perform only a part of a request
    cached_tokens: list[int]
    running: list[int]  # R_i
    waiting: list[int]  # q_i
    decodes: list[int]  # D_i
    prefill_tokens: list[int]  # PP_i
    kv_usage: list[float]  # u_i
    refused: list[str]
    ids: list[str]
    pace: list[float]
    block_size: list[int]  # B_i
    kv_tokens: list[int]
    role: list[str]
    connector: list[str]

    def __init__(self, instances: Iterable[InstanceState]) -> None:
        self._set(list(instances))
        for name, of in _PLAIN.items():
            setattr(self, name, list(map(of, self.instances)))
        self.is_paced, self.is_divided = _some_paced(self.pace), _some_divided(self.role)

    def _set(self, instances: list[InstanceState]) -> None:
        self.instances = instances
        self.left_out: Mapping[str, int] = {}  # pool instances not included, by reason
        self._columns: dict[tuple[Any, ...], list[Any]] = {}
        self._kept: list[tuple[list[Any], InstanceValue]] = []  # each further column with its function
        self._positions: dict[str, int] | None = None
        self._order: list[int] | None = None

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

    def _make(self, key: tuple[Any, ...]) -> list[Any]:
        value, *given = key
        made = list(map(value, self.instances, *map(repeat, given)))
        self._kept.append((made, (lambda instance: value(instance, *given)) if given else value))
        return made

    def replace(self, position: int, instance: InstanceState) -> None:
        """Replace the instance at a position."""
        self.instances[position] = instance
        if len(self._columns) > COLUMNS_KEPT:
            self._columns.clear()
            self._kept.clear()
        for column, of in self._kept:
            column[position] = of(instance)
        # Written out: a loop over the fields, or tuples of them, would take three times as long
        self.cached_tokens[position] = instance.cached_tokens
        self.running[position] = instance.running
        self.waiting[position] = instance.waiting
        self.decodes[position] = instance.decodes
        self.prefill_tokens[position] = instance.prefill_tokens
        self.kv_usage[position] = instance.kv_usage
        self.refused[position] = instance.refused
        if (
            instance.pace == self.pace[position]
            and instance.role == self.role[position]
            and instance.kv_tokens == self.kv_tokens[position]
            and instance.block_size == self.block_size[position]
            and instance.connector == self.connector[position]
            and instance.id == self.ids[position]
        ):
            return
        for name, of in _SELDOM.items():
            getattr(self, name)[position] = of(instance)
        self.is_paced, self.is_divided = _some_paced(self.pace), _some_divided(self.role)

    def only(self, stays: Sequence[bool]) -> "FleetColumns":
        return _FleetPart(self, lambda column: compress(column, stays))

    def without(self, position: int) -> "FleetColumns":
        return _FleetPart(self, lambda column: dropped(column, position))

    def at(self, positions: Sequence[int]) -> "FleetColumns":
        """Return the fleet of the instances at the positions; `is_paced` refers to these instances alone."""
        few = len(positions) < 2
        # `itemgetter` is twice as fast as a loop
        fleet = _FleetPart(self, (lambda column: [column[at] for at in positions]) if few else itemgetter(*positions))
        fleet.is_paced = fleet.is_paced and _some_paced(fleet.pace)
        return fleet


class _FleetPart(FleetColumns):
    """Some instances of a fleet, for one decision. Further columns are taken from the fleet's columns."""

    __slots__ = ("_part_of", "_whole")

    def __init__(self, whole: FleetColumns, part_of: Callable[[list[Any]], Iterable[Any]]) -> None:
        self._whole, self._part_of = whole, part_of
        self._set(list(part_of(whole.instances)))
        # Written out: a loop over the names would take twice as long
        self.cached_tokens = list(part_of(whole.cached_tokens))
        self.running = list(part_of(whole.running))
        self.waiting = list(part_of(whole.waiting))
        self.decodes = list(part_of(whole.decodes))
        self.prefill_tokens = list(part_of(whole.prefill_tokens))
        self.kv_usage = list(part_of(whole.kv_usage))
        self.refused = list(part_of(whole.refused))
        self.ids = list(part_of(whole.ids))
        self.pace = list(part_of(whole.pace))
        self.block_size = list(part_of(whole.block_size))
        self.kv_tokens = list(part_of(whole.kv_tokens))
        self.role = list(part_of(whole.role))
        self.connector = list(part_of(whole.connector))
        self.is_paced, self.is_divided = whole.is_paced, whole.is_divided and _some_divided(self.role)

    def _make(self, key: tuple[Any, ...]) -> list[Any]:
        return list(self._part_of(self._whole.column(*key)))


def _some_paced(pace: list[float]) -> bool:
    return any(map((1.0).__ne__, pace))


def _some_divided(role: list[str]) -> bool:
    return any(map("both".__ne__, role))


def dropped(column: list[Any], position: int) -> list[Any]:
    return column[:position] + column[position + 1 :]


def fleet_of(instances: Sequence[InstanceState]) -> FleetColumns:
    return instances if isinstance(instances, FleetColumns) else FleetColumns(instances)


_OFTEN = ("cached_tokens", "running", "waiting", "decodes", "prefill_tokens", "kv_usage", "refused")
_SELDOM = {"ids": attrgetter("id")} | {
    name: attrgetter(name) for name in ("pace", "block_size", "kv_tokens", "role", "connector")
}
_PLAIN = {name: attrgetter(name) for name in _OFTEN} | _SELDOM
