"""A pool's instances in the form that policies use, kept between decisions. An update is needed only for instances that
changed and for those whose breaker is not closed, because its state depends on the time. In a pool with more than
COMPARED instances, a decision sees a shortlist. The router and the twin share both. Requests for an adapter see its
homes: a part of the pool, kept in the same way.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from router.policy.decide import decide
from router.policy.fleet import FleetColumns
from router.policy.strategies.strategy import COMPARED
from router.policy.types import Decision, InstanceState, ParsedPolicy, RoutingRequest
from router.policy.value import replace
from router.pool.load.load_order import Load
from router.pool.shortlist import Shortlist, Traits

TAKEN_UP = 32  # changes of a large pool sorted in per decision; instances on the shortlist are always up to date


class Viewed(Protocol):
    """An endpoint of the router or the twin."""

    changes: set[str]  # ids of changed endpoints; each endpoint adds its own id

    @property
    def id(self) -> str: ...

    @property
    def is_suspect(self) -> bool: ...  # True if its refusal depends on the time

    @property
    def traits(self) -> Traits: ...

    def refusal(self, now: float, open_s: float) -> str: ...

    def load(self, refused: str) -> Load: ...

    def view(self, refused: str) -> InstanceState: ...


E = TypeVar("E", bound=Viewed)


class FleetView(Generic[E]):
    def __init__(self, endpoints: Mapping[str, E] | None = None) -> None:
        self._changed: set[str] = set()  # ids
        self._suspects: set[str] = set()
        self.take(endpoints or {})

    def take(self, endpoints: Mapping[str, E]) -> None:
        self._take(endpoints)
        self._reported = self._changed
        for endpoint in endpoints.values():
            endpoint.changes = self._reported

    def _take(self, endpoints: Mapping[str, E]) -> None:
        self._endpoints = endpoints
        self._in_order = list(endpoints.values())
        self._fleet: FleetColumns | None = None
        self._places = {name: place for place, name in enumerate(endpoints)}
        self._stale: set[int] = set()  # outdated positions in `_fleet`, in a large pool
        self._changed, self._suspects = set(), set()
        # By id: sets that record its changes; empty if there are no parts
        self._readers: dict[str, list[set[str]]] = {}
        self._elsewhere: Mapping[str, int] = {}  # number of pool instances missing from this part, by reason
        self._pending: list[str] = list(endpoints)  # changes not yet in the shortlist
        traits = [endpoint.traits for endpoint in self._in_order]
        self._shortlist = Shortlist(traits) if len(traits) > COMPARED else None
        self._is_known = False  # whether the shortlist has seen every instance
        self._is_divided = any(one.role != "both" for one in traits)

    def part(self, names: Container[str], why: str) -> "FleetView[E]":
        """Return a view of these instances only, valid until the next `take`. `why` is the reason shown for leaving out
        the others."""
        if not self._readers:
            self._changed = self._reported.copy()
            self._readers |= {name: [self._changed] for name in self._endpoints}
        part: FleetView[E] = FleetView()
        part._take({name: endpoint for name, endpoint in self._endpoints.items() if name in names})
        part._reported, part._readers = self._reported, self._readers
        for name in part._endpoints:
            self._readers[name].append(part._changed)
        if left := len(self._endpoints) - len(part._endpoints):
            part._elsewhere = {why: left}
        return part

    def _hear(self) -> None:
        """Pass on to each view which of its instances have changed."""
        for name in self._reported:
            for changed in self._readers[name]:
                changed.add(name)
        self._reported.clear()

    @property
    def endpoints(self) -> Sequence[E]:
        return self._in_order

    def decide(
        self,
        request: RoutingRequest,
        policy: ParsedPolicy,
        draw: float,
        tried: Mapping[str, str],
        now: float,
        open_s: float,
    ) -> Decision:
        """Decide for the request. `tried` holds instances that failed it, with the error; `now` is the loop's time."""
        if self._shortlist is None:
            return decide(request, self.fleet(tried, now, open_s), policy, draw)
        self._take_up(self._shortlist, now, open_s, TAKEN_UP if self._is_known else len(self._endpoints))
        self._is_known = True
        decision = self._decide_on(self._shortlist, request, policy, draw, tried, now, open_s)
        if not decision.instance and (self._pending or self._changed):
            self._take_up(self._shortlist, now, open_s, len(self._endpoints))
            decision = self._decide_on(self._shortlist, request, policy, draw, tried, now, open_s)
        if decision.instance or not self._is_divided:
            return decision
        # If instances have roles, the ability of one to take a request also depends on the others.
        return decide(request, self.fleet(tried, now, open_s), policy, draw)

    def _decide_on(
        self,
        shortlist: Shortlist,
        request: RoutingRequest,
        policy: ParsedPolicy,
        draw: float,
        tried: Mapping[str, str],
        now: float,
        open_s: float,
    ) -> Decision:
        request = replace(request, pool=shortlist.pool_load)
        listed = shortlist.listed(request, policy, tried, draw)
        fleet = self._listed(listed, tried, now, open_s)
        fleet.left_out = {**shortlist.left_out(listed, policy, tried), **self._elsewhere}
        return decide(request, fleet, policy, draw)

    def fleet(self, tried: Mapping[str, str], now: float, open_s: float) -> FleetColumns:
        """Return every instance."""
        if self._shortlist is not None:
            return self._columns(self._in_order, tried, now, open_s)
        if self._readers:
            self._hear()
        fleet = self._fleet
        if fleet is None:
            fleet = self._first(now, open_s)
        else:
            for name in self._changed | self._suspects if self._suspects else self._changed:
                endpoint = self._endpoints.get(name)
                if endpoint is None:
                    continue
                if endpoint.is_suspect:  # as in `_refusal`
                    self._suspects.add(name)
                elif self._suspects:
                    self._suspects.discard(name)
                fleet.replace(self._places[name], endpoint.view(endpoint.refusal(now, open_s)))
        self._changed.clear()
        return self._without(fleet, tried) if tried else fleet

    def _first(self, now: float, open_s: float) -> FleetColumns:
        fleet = self._fleet = FleetColumns(one.view(self._refusal(one, now, open_s)) for one in self._in_order)
        fleet.left_out = self._elsewhere
        return fleet

    def _without(self, fleet: FleetColumns, tried: Mapping[str, str]) -> FleetColumns:
        fleet = FleetColumns(replace(one, refused=tried[one.id]) if one.id in tried else one for one in fleet)
        fleet.left_out = self._elsewhere
        return fleet

    def _columns(self, endpoints: Iterable[E], tried: Mapping[str, str], now: float, open_s: float) -> FleetColumns:
        seen = [endpoint.view(endpoint.refusal(now, open_s)) for endpoint in endpoints]
        if tried:
            seen = [replace(one, refused=tried[one.id]) if one.id in tried else one for one in seen]
        return FleetColumns(seen)

    def _listed(self, positions: Sequence[int], tried: Mapping[str, str], now: float, open_s: float) -> FleetColumns:
        """Return the instances at these positions, refreshing those that changed."""
        in_order, whole = self._in_order, self._fleet
        if whole is None:
            whole = self._fleet = self._columns(in_order, {}, now, open_s)
        for position in self._stale.intersection(positions):
            endpoint = in_order[position]
            whole.replace(position, endpoint.view(self._refusal(endpoint, now, open_s)))
            self._stale.discard(position)
        if tried:
            return self._columns([in_order[position] for position in positions], tried, now, open_s)
        return whole.at(positions)

    def _take_up(self, shortlist: Shortlist, now: float, open_s: float, most: int) -> None:
        if self._readers:
            self._hear()
        self._stale.update(map(self._places.__getitem__, self._changed | self._suspects))
        pending = self._pending
        if self._changed and len(pending) < most:
            pending += sorted(self._changed.difference(pending))  # sorted, so that every process uses the same order
            self._changed.clear()
        if not pending and not self._suspects:
            return
        part = pending[:most]
        del pending[:most]
        endpoints = self._endpoints
        shortlist.take(
            (name, endpoint.load(self._refusal(endpoint, now, open_s)))
            for name in ((*part, *self._suspects) if self._suspects else part)
            for endpoint in (endpoints[name],)
        )

    def _refusal(self, endpoint: E, now: float, open_s: float) -> str:
        if endpoint.is_suspect:
            self._suspects.add(endpoint.id)
        elif self._suspects:
            self._suspects.discard(endpoint.id)
        return endpoint.refusal(now, open_s)
