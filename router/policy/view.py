"""The input of a strategy, and computations shared by strategies. Instances are identified by index."""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from math import inf
from operator import add, truediv
from typing import Any

from router.policy.fleet import FleetColumns, dropped
from router.policy.held import HeldByLevel
from router.policy.types import InstanceState, ParsedPolicy, RoutingRequest

SPARSE = 4  # `is_sparse` is true from this ratio of instances to holders of the prompt


class View:
    """A request and the instances that may take it (at least one). Lists are computed on first access."""

    __slots__ = (
        *("_cached", "_new", "_new_at_pace", "_ongoing", "_work"),
        *("draw", "fleet", "instances", "paced", "policy", "request"),
    )

    def __init__(
        self,
        request: RoutingRequest,
        instances: FleetColumns,
        policy: ParsedPolicy,
        draw: float,
        fleet: FleetColumns,
        paced: bool = False,
    ) -> None:
        self.request = request
        self.instances = instances
        self.policy = policy
        self.draw = draw  # [0, 1): decides between instances that are equally good
        self.fleet = fleet  # every instance, including those that only prefill for others
        self.paced = paced  # True if instances differ in speed and the policy considers it
        self._cached: Sequence[int] | None = None
        self._new: list[int] | None = None
        self._new_at_pace: list[float] | None = None
        self._ongoing: list[float] | None = None
        self._work: list[float] | None = None

    @property
    def cached(self) -> Sequence[int]:
        """h_i, at most the prompt's length. Tokens below the device count less, because they have to be loaded
        first."""
        made = self._cached
        if made is None:
            made = self._cached = self._held()
        return made

    def _held(self) -> Sequence[int]:
        request, ids = self.request, self.instances.ids
        held_by = request.held
        tiers: Mapping[str, Sequence[int]] | None = request.held_tiers
        most, prompt = 0, request.prompt_tokens
        known: list[int] = []
        if type(held_by) is dict:  # true for all but the largest pools
            for name in ids:
                tokens = held_by.get(name, 0)
                if tokens > most:
                    most = tokens
                known.append(tokens)
        held: Sequence[int] = known if known and most <= prompt else cached_tokens(request, self.instances)
        if tiers is None:
            return held
        weights = self._tier_weights
        return [weighted(tokens, tiers.get(name), weights) for name, tokens in zip(ids, held, strict=True)]

    @property
    def _tier_weights(self) -> tuple[float, float]:
        return self.policy["cache.host_weight"], self.policy["cache.disk_weight"]

    @property
    def new(self) -> list[int]:
        """n_i = L − h_i"""
        made = self._new
        if made is None:
            made = self._new = self._missing()
        return made

    def _missing(self) -> list[int]:
        prompt, cached = self.request.prompt_tokens, self.cached
        if not is_sparse(self.request, self.instances):
            return [prompt - tokens for tokens in cached]
        new = [prompt] * len(cached)
        for name in self.request.held or ():
            position = self.instances.position(name)
            if position is not None:
                new[position] = prompt - cached[position]
        return new

    @property
    def new_at_pace(self) -> list[float]:
        """n_i/pace_i"""
        made = self._new_at_pace
        if made is None:
            made = self._new_at_pace = self.at_pace(self.new)
        return made

    @property
    def ongoing(self) -> list[float]:
        """PP_i + request_tokens · R_i: prefill still to be computed, plus a fixed number of tokens per request."""
        made = self._ongoing
        if made is None:
            made = self._ongoing = self.instances.column(ongoing, self.policy["load.request_tokens"])
        return made

    @property
    def work(self) -> list[float]:
        """(n_i + ongoing_i)/pace_i: the instance's work if it gets this request, in tokens of the pool's median
        instance. Losing the cache counts as work.
        """
        made = self._work
        if made is None:
            made = self._work = self.at_pace(list(map(add, self.new, self.ongoing)))
        return made

    def at_pace(self, tokens: list[Any]) -> list[Any]:
        """Divide tokens by pace, to express work in tokens of the pool's median instance."""
        return list(map(truediv, tokens, self.instances.pace)) if self.paced else tokens

    def pace_of(self, instance: InstanceState) -> float:
        return instance.pace if self.paced else 1.0

    def cached_on(self, instance: InstanceState) -> int:
        """Return h_i of one instance."""
        held = self.held_on(instance)
        tiers: Mapping[str, Sequence[int]] | None = self.request.held_tiers
        return held if tiers is None else weighted(held, tiers.get(instance.id), self._tier_weights)

    def held_on(self, instance: InstanceState) -> int:
        """Return the tokens of the prompt that the instance holds, on any tier."""
        request = self.request
        cached = instance.cached_tokens if request.held is None else request.held.get(instance.id, 0)
        return cached if cached < request.prompt_tokens else request.prompt_tokens

    def without(self, instance: InstanceState | None) -> "View":
        position = self.instances.position(instance.id) if instance is not None else None
        if position is None:
            return self
        rest = self.of(self.instances.without(position))
        # Computed columns are cached
        rest._cached = None if self._cached is None else dropped(list(self._cached), position)
        rest._new = None if self._new is None else dropped(self._new, position)
        rest._new_at_pace = None if self._new_at_pace is None else dropped(self._new_at_pace, position)
        rest._ongoing = None if self._ongoing is None else dropped(self._ongoing, position)
        rest._work = None if self._work is None else dropped(self._work, position)
        return rest

    def only(self, stays: Sequence[bool]) -> "View":
        return self.of(self.instances.only(stays))

    def of(self, instances: FleetColumns) -> "View":
        return View(self.request, instances, self.policy, self.draw, self.fleet, self.paced)


def ongoing(instance: InstanceState, request_tokens: float) -> float:
    return instance.prefill_tokens + request_tokens * instance.running


def weighted(held: int, tiers: Sequence[int] | None, weights: tuple[float, float]) -> int:
    """Return `held` tokens, those in host memory and on disk weighted; `tiers` is None if all are on the device."""
    if tiers is None:
        return held
    _, host, disk = tiers
    return max(0, held - round((1 - weights[0]) * host + (1 - weights[1]) * disk))


def is_sparse(request: RoutingRequest, instances: FleetColumns) -> bool:
    """Return whether so few of many instances hold part of the prompt that visiting only those is cheaper."""
    return request.held is not None and SPARSE * len(request.held) < len(instances)


def cached_tokens(request: RoutingRequest, instances: FleetColumns) -> Sequence[int]:
    if is_sparse(request, instances):
        cached = [0] * len(instances)
        for name, tokens in (request.held or {}).items():
            position = instances.position(name)
            if position is not None:
                cached[position] = min(tokens, request.prompt_tokens)
        return cached
    return cached_by(request, instances.ids, instances.cached_tokens if request.held is None else ())


def cached_by(request: RoutingRequest, ids: Sequence[str], own: Sequence[int]) -> Sequence[int]:
    """Return h_i by id; `own` has the values of the instances themselves."""
    prompt, held = request.prompt_tokens, request.held
    if type(held) is dict:
        known: list[int] = []
        for name in ids:
            tokens = held.get(name, 0)
            known.append(tokens if tokens < prompt else prompt)
        return known
    cached = own
    if held is not None:
        cached = held.of(ids) if isinstance(held, HeldByLevel) else list(map(held.get, ids, repeat(0)))
    return cached if max(cached, default=0) <= prompt else [min(one, prompt) for one in cached]


def least(view: View, scores: Sequence[float], *then: Sequence[float] | Callable[[], Sequence[float]]) -> int:
    """Return the index of the lowest score; ties are decided by the lowest `then`, then by the draw (in the order of
    ids)."""
    least, best, is_tied = -1, inf, False
    for position, score in enumerate(scores):  # a loop, because three searches in C take longer
        if score < best or least < 0:
            least, best, is_tied = position, score, False
        elif score == best:
            is_tied = True
    if not is_tied:
        return least
    tied = [position for position, score in enumerate(scores) if score == best]
    for further in then:
        seconds = further() if callable(further) else further
        best = min([seconds[position] for position in tied])
        tied = [position for position in tied if seconds[position] == best]
    return by_turn(view, tied, int(view.draw * len(tied)))


def by_turn(view: View, positions: Sequence[int], turn: int) -> int:
    """Return the index for this turn, in the order of ids."""
    if len(positions) == 1:
        return positions[0]
    if len(positions) == len(view.instances):
        return view.instances.order[turn % len(positions)]
    return sorted(positions, key=view.instances.ids.__getitem__)[turn % len(positions)]
