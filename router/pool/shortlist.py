"""The instances of a large pool that one decision compares. Pure; the router and the twin share it. Above COMPARED
instances, a decision sees the session's instance, the instances that hold most of the prompt, the least loaded ones and
a sample of the others, so that its cost and its receipt do not grow with the pool. A strategy that compares nothing
sees a sample, or the next instances in turn (`Shortlisting`). If any instance can take the request, the list contains
one that can: instances above a limit of the policy come last in the order of load. The columns of a whole pool are kept
between decisions, those of a list are not. A list of FEWER costs as much as a pool of about 150.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from math import log
from typing import NamedTuple

from router.policy.held import HeldByLevel
from router.policy.rules.hashing import folded_id, hash_of, nearest
from router.policy.strategies import STRATEGIES
from router.policy.strategies.strategy import COMPARED, Shortlisting, Weights
from router.policy.types import ParsedPolicy, PoolLoad, RoutingRequest
from router.pool.load.load_order import Key, Load, LoadOrder

# Shares of the list; the rest is drawn. Prefill instances are added if instances are paired.
CACHED = 1 / 4  # share for instances with most of the prompt
LEAST = 1 / 2  # share for the least loaded, divided among the pool's roles and connectors
LEAST_OF_GROUP = 1 / 8
NEAREST = 1 / 2  # share for the nearest by hash
WEIGHED = 128  # least loaded instances compared by the strategy's weights
KEYS_KEPT = 1_024  # keys whose nearest instances are known
SHOWN_TRIED = 8  # failed instances listed with the reason; more are only counted
ORDERS_KEPT = 16  # one per policy in use (live, candidate, shadow), and per prompt if its length is the weight
ROUGHLY = 16  # factor between two orders: each order serves weights up to 4 times larger or smaller than its own
SPREAD = 1 << 20  # makes a sample use other bits of the draw than a strategy, which uses the first
LEFT_OUT = {
    "load": "more load and no more of the prompt cached",
    "draw": "not drawn",
    "turn": "not their turn",
}


class Traits(NamedTuple):
    id: str
    role: str
    connector: str
    pair: str


class Shortlist:
    def __init__(self, traits: Sequence[Traits]) -> None:
        self._traits = traits
        self._ids = [one.id for one in traits]
        self._positions = {name: position for position, name in enumerate(self._ids)}
        self._loads = [Load(0, 0, 0.0, 0, "")] * len(traits)
        # Copies of the load fields that a price reads, stored side by side because the loads are scattered in memory
        self._queued, self._requests, self._context = (array("d", bytes(8 * len(traits))) for _ in range(3))
        numbers: dict[tuple[str, str], int] = {}
        self._group_of = [numbers.setdefault((one.role, one.connector), len(numbers)) for one in traits]
        self._groups = len(numbers)
        self._is_paired = any(one.pair for one in traits)
        self._orders: dict[Key, LoadOrder] = {}
        self._refused: Counter[str] = Counter()
        self._able, self._running = len(traits), 0
        self._uneven = 0  # number of instances with a pace other than 1
        self._decodes = [one.role == "decode" for one in traits]
        self._computing = self._idle = self._decodes.count(False)
        self._near: dict[tuple[str, int], list[int]] = {}  # by key and number
        self._hashes = [folded_id(one.id) for one in traits]

    def take(self, changes: Iterable[tuple[str, Load]]) -> None:
        """Take over changes of instances, by id."""
        changed, positions, loads = [], self._positions, self._loads
        for name, load in changes:
            position = positions[name]
            before, loads[position] = loads[position], load
            changed.append(position)
            self._queued[position], self._requests[position] = load.prefill_tokens, load.running
            self._context[position] = load.kv_usage * load.kv_tokens
            self._uneven += (load.pace != 1.0) - (before.pace != 1.0)
            if before.refused != load.refused:
                self._refused[before.refused] -= 1
                self._refused[load.refused] += 1
                self._add(before, position, -1)
                self._add(load, position, 1)
            elif not load.refused:  # like the branch above, for the fields that change often
                self._running += load.running - before.running
                if (idle := (not load.prefill_tokens) - (not before.prefill_tokens)) and not self._decodes[position]:
                    self._idle += idle
        for order in self._orders.values():
            order.take(changed)

    def _add(self, load: Load, position: int, sign: int) -> None:
        if load.refused:
            return
        self._able += sign
        self._running += sign * load.running
        if not self._decodes[position]:
            self._computing += sign
            self._idle += sign * (not load.prefill_tokens)

    @property
    def pool_load(self) -> PoolLoad:
        """Sum the load of the instances that take requests."""
        return PoolLoad(self._running / max(1, self._able), self._idle / max(1, self._computing))

    def listed(self, request: RoutingRequest, policy: ParsedPolicy, tried: Mapping[str, str], draw: float) -> list[int]:
        """Return the positions to compare, ascending. `tried`: instances that cannot take this request."""
        how = _shortlisting(policy)
        most = max(how.most, COMPARED) if self._uneven and how.by == "load" else how.most  # the order ignores the pace
        weights = how.weights(request, policy) if how.weights is not None else None
        order = self._order(policy, weights)
        out = {self._positions[name] for name in tried if name in self._positions} if tried else set()
        chosen = set(out) if len(out) <= SHOWN_TRIED else set()
        if how.key is not None and (key := how.key(request)) is not None:
            near = self._nearest(key, int(NEAREST * most))
            chosen.update(at for at in near if at not in out and order.is_able(at))
        if how.by == "turn":
            for group in range(self._groups):
                chosen.update(_in_turn(order.positions(group, out), request.turn, most // self._groups))
        else:
            groups = [order.able(group, out) for group in range(self._groups)]
            able = groups[0] if len(groups) == 1 else list(chain(*groups))
            if how.by == "load":
                if (home := self._positions.get(request.bound_to or "")) is not None:
                    chosen.add(home)
                chosen.update(self._most_cached(request, able, order, int(CACHED * most)))
                chosen.update(self._least_loaded(groups, weights, most, draw))
                chosen -= out if len(out) > SHOWN_TRIED else set()
            chosen.update(self._at(_drawn(able, draw, most - len(chosen))))
        return sorted(self._with_pairs(chosen) if self._is_paired else chosen)

    def _least_loaded(
        self, groups: Sequence[list[int]], weights: Weights | None, listed: int, draw: float
    ) -> list[int]:
        found, count = list[int](), len(self._traits)
        most = int(max(LEAST / self._groups, LEAST_OF_GROUP) * listed)
        for group in groups:
            if weights is None or len(group) <= most:
                found += self._at(_least(group, draw, most, count))
            else:
                idle = group[most - 1] < count  # so many instances have no load
                found += self._cheapest(_least(group, draw, WEIGHED, count), *weights, draw, most, idle=idle)
        return found

    def _cheapest(
        self, values: list[int], of_request: float, of_context: float, draw: float, most: int, *, idle: bool
    ) -> list[int]:
        """Return the cheapest instances in order; the draw breaks ties, as in `_least`. `idle` is True if enough
        instances may cost nothing, so that no further prices are needed.
        """
        start, count = int(draw * SPREAD % 1.0 * len(values)), len(self._traits)
        values = values[start:] + values[:start]
        queued, requests, context = self._queued, self._requests, self._context
        of_queued, found, left = 1 + of_context, list[int](), most
        for value in values if idle else ():
            at = value % count
            if not queued[at] * of_queued + of_request * requests[at] + of_context * context[at]:
                found.append(at)
                left -= 1
                if not left:
                    return found
        positions = self._at(values)
        prices = [queued[at] * of_queued + of_request * requests[at] + of_context * context[at] for at in positions]
        return [positions[place] for place in sorted(range(len(prices)), key=prices.__getitem__)[:most]]

    def _nearest(self, key: str, most: int) -> list[int]:
        """Return the nearest instances by hash; the result is cached, because many prompts have the same beginning."""
        near = self._near.get((key, most))
        if near is None:
            if len(self._near) >= KEYS_KEPT:
                self._near.clear()
            near = self._near[key, most] = nearest(hash_of(key), self._hashes, most)
        return near

    def _with_pairs(self, chosen: set[int]) -> set[int]:
        """Add the prefill instances of paired decoders; a strategy reaches them only through their decoders."""
        pairs = (self._traits[position].pair for position in chosen)
        return chosen.union(self._positions[pair] for pair in pairs if pair in self._positions)

    def left_out(self, listed: Sequence[int], policy: ParsedPolicy, tried: Mapping[str, str]) -> dict[str, int]:
        """Count the instances missing from the list, by reason."""
        why = LEFT_OUT[_shortlisting(policy).by]
        if self._able == len(self._traits) and len(tried) <= SHOWN_TRIED:
            return {why: len(self._traits) - len(listed)} if len(listed) < len(self._traits) else {}
        counts = Counter(self._refused)
        del counts[""]
        for name, why in tried.items() if len(tried) > SHOWN_TRIED else ():
            if name in self._positions and not self._loads[self._positions[name]].refused:
                counts[why] += 1
        for position in listed:
            if refused := self._loads[position].refused:
                counts[refused] -= 1
        rest = len(self._traits) - len(listed) - counts.total()
        return dict(+counts) | ({why: rest} if rest > 0 else {})

    def _order(self, policy: ParsedPolicy, weights: Weights | None) -> LoadOrder:
        weight = _shortlisting(policy).request_tokens
        if weights is not None:
            weight = ROUGHLY ** round(log(max(weights[0] / (1 + weights[1]), 1.0), ROUGHLY))
        elif weight is None:
            weight = int(policy["load.request_tokens"])
        key: Key = weight, policy["admission.max_inflight_per_instance"], policy["load.kv_usage_max"]
        order = self._orders.get(key)
        if order is None:
            if len(self._orders) >= ORDERS_KEPT:
                self._orders.clear()
            order = self._orders[key] = LoadOrder(key, self._loads, self._group_of, self._groups)
        order.settle()
        return order

    def _at(self, values: Iterable[int]) -> list[int]:
        count = len(self._traits)
        return [value % count for value in values]

    def _most_cached(self, request: RoutingRequest, able: Sequence[int], order: LoadOrder, most: int) -> Sequence[int]:
        """Return the instances that hold most of the prompt. `able` is ordered by load, so that among equal holders the
        least loaded come first."""
        held, positions = request.held or {}, self._positions
        if len(held) <= most:
            return [positions[name] for name in held if name in positions]
        if isinstance(held, HeldByLevel):
            return self._most_of_levels(held, able, order, most)
        ordered = sorted(held.values())
        least, more = ordered[-most], ordered[-1] > ordered[-most]
        found = [positions[one] for one, tokens in held.items() if tokens > least and one in positions] if more else []
        equal = [name for name, tokens in held.items() if tokens == least]
        return found + self._least_loaded_of(equal, able, order, most - len(found))

    def _most_of_levels(self, held: HeldByLevel, able: Sequence[int], order: LoadOrder, most: int) -> list[int]:
        found, positions = list[int](), self._positions
        for _, mask in reversed(held.levels):
            holders, missing = mask.bit_count(), most - len(found)
            if holders < missing:
                found += [positions[name] for name in held.of_mask(mask) if name in positions]
            elif self._is_few(holders, able, missing):
                return found + self._least_loaded_of([*held.of_mask(mask)], able, order, missing)
            else:
                return found + self._first_of_mask(held, mask, able, missing)
        return found

    def _first_of_mask(self, held: HeldByLevel, mask: int, able: Sequence[int], most: int) -> list[int]:
        """Return the least loaded instances of a level held by many, without naming all of its instances."""
        found, ids, bits, count = list[int](), self._ids, held.bits, len(self._ids)
        for value in able:
            at = value % count
            if bits.get(ids[at], 0) & mask:
                found.append(at)
                most -= 1
                if not most:
                    break
        return found

    def _is_few(self, holders: int, able: Sequence[int], most: int) -> bool:
        """Return whether sorting the holders is cheaper than going through the instances in the order of load."""
        return self._groups == 1 and holders**2 < most * len(able)

    def _least_loaded_of(self, names: Collection[str], able: Sequence[int], order: LoadOrder, most: int) -> list[int]:
        """Return the least loaded of these instances."""
        positions, count = self._positions, len(self._ids)
        if self._is_few(len(names), able, most):
            by_position = order.values
            values = sorted([by_position[positions[name]] for name in names if name in positions])
            if len(able) == count:  # every instance is able
                return self._at(values[:most])
            return self._at(islice((value for value in values if _is_among(able, value)), most))
        wanted, found = {positions[name] for name in names if name in positions}, list[int]()
        for value in able:
            if value % count in wanted:
                found.append(value % count)
                if len(found) == most:
                    break
        return found


def _shortlisting(policy: ParsedPolicy) -> Shortlisting:
    return STRATEGIES[policy["strategy.name"]].shortlisting


def _is_among(able: Sequence[int], value: int) -> bool:
    """Return whether the value is in `able`, which is ascending."""
    place = bisect_left(able, value)
    return place < len(able) and able[place] == value


def _least(able: list[int], draw: float, most: int, count: int) -> list[int]:
    """Return the least loaded instances. If the last ones are tied, the draw decides, so that routers choose different
    ones."""
    if len(able) <= most or able[most - 1] // count < able[most] // count:
        return able[:most]
    load = able[most] // count
    begin, end = bisect_left(able, load * count), bisect_left(able, (load + 1) * count)
    start, missing = begin + int(draw * SPREAD % 1.0 * (end - begin)), most - begin
    tied = able[start : min(end, start + missing)] + able[begin : min(start, begin + missing)]
    return able[:begin] + tied[:missing]


def _drawn(able: Sequence[int], draw: float, most: int) -> Sequence[int]:
    """Draw evenly from all loads; each instance has the same probability."""
    if most >= len(able) or most <= 0:
        return able[: max(most, 0)]
    start, step = draw * SPREAD % 1.0, len(able) / most
    return [able[int((start + number) * step)] for number in range(most)]


def _in_turn(positions: Sequence[int], turn: int, most: int) -> Sequence[int]:
    """Return the block of instances for this turn: each instance is chosen once in as many turns as there are
    instances.
    """
    if not positions:
        return ()
    first = turn % len(positions) // most * most
    return positions[first : first + most]
