"""Input and result of a strategy, and computations that strategies share. Instances are named by index."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add, truediv
from typing import Any, Generic, TypeVar

from router.policy.fleet import FleetColumns, dropped
from router.policy.held import HeldByLevel
from router.policy.reasons import InWords
from router.policy.types import InstanceState, ParsedPolicy, RequestClass, RoutingRequest
from router.policy.value import Value

T = TypeVar("T")
SPARSE = 4  # least ratio of instances to holders of a prompt


class kept(Generic[T]):
    """functools.cached_property without its lock, which costs as much as the value itself."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, view: Any, owner: type) -> T:
        made = view.__dict__[self._name] = self._make(view)
        return made


@dataclass  # no slots, as the lists below are built on first use and kept
class View:
    """A request and the instances that may take it (at least one)."""

    request: RoutingRequest
    instances: FleetColumns
    policy: ParsedPolicy
    draw: float  # [0, 1): decides between instances that are equally good
    fleet: FleetColumns  # every instance, including those that can only prefill for others
    paced: bool = False  # True if instances differ in speed and the policy considers it

    @kept
    def cached(self) -> Sequence[int]:
        """h_i, at most the prompt's length. Tokens below the device count less, as they have to be loaded."""
        request, ids = self.request, self.instances.ids
        held_by, tiers = request.held, request.held_tiers
        # A plain dict, for all but the largest pools, is read in one step
        held: Sequence[int] = list(map(held_by.get, ids, repeat(0))) if type(held_by) is dict else ()
        if not held or max(held) > request.prompt_tokens:
            held = cached_tokens(request, self.instances)
        if tiers is None:
            return held
        weights = self._tier_weights
        return [weighted(tokens, tiers.get(name), weights) for name, tokens in zip(ids, held, strict=True)]

    @property
    def _tier_weights(self) -> tuple[float, float]:
        return self.policy["cache.host_weight"], self.policy["cache.disk_weight"]

    @kept
    def new(self) -> list[int]:
        """n_i = L − h_i"""
        prompt, cached = self.request.prompt_tokens, self.cached
        if not is_sparse(self.request, self.instances):
            return [prompt - tokens for tokens in cached]
        new = [prompt] * len(cached)
        for name in self.request.held or ():
            position = self.instances.position(name)
            if position is not None:
                new[position] = prompt - cached[position]
        return new

    @kept
    def new_at_pace(self) -> list[float]:
        """n_i/pace_i"""
        return self.at_pace(self.new)

    @kept
    def ongoing(self) -> list[float]:
        """PP_i + request_tokens · R_i: prefill still to be computed, and a fixed number of tokens per request."""
        return self.instances.column(ongoing, self.policy["load.request_tokens"])

    @kept
    def work(self) -> list[float]:
        """(n_i + ongoing_i)/pace_i: the instance's work with this request, in tokens of the pool's median instance.
        Losing the cache counts as work."""
        return self.at_pace(list(map(add, self.new, self.ongoing)))

    def at_pace(self, tokens: list[Any]) -> list[Any]:
        """Divide tokens by pace: the tokens that the pool's median instance would compute in the same time."""
        return list(map(truediv, tokens, self.instances.pace)) if self.paced else tokens

    def pace_of(self, instance: InstanceState) -> float:
        return instance.pace if self.paced else 1.0

    def cached_on(self, instance: InstanceState) -> int:
        """Return h_i of one instance."""
        held, tiers = self.held_on(instance), self.request.held_tiers
        return held if tiers is None else weighted(held, tiers.get(instance.id), self._tier_weights)

    def held_on(self, instance: InstanceState) -> int:
        """Return the tokens of the prompt that the instance holds on any tier."""
        request = self.request
        cached = instance.cached_tokens if request.held is None else request.held.get(instance.id, 0)
        return cached if cached < request.prompt_tokens else request.prompt_tokens

    def without(self, instance: InstanceState | None) -> "View":
        position = self.instances.position(instance.id) if instance is not None else None
        if position is None:
            return self
        rest = self.of(self.instances.without(position))
        for name in ("cached", "new", "new_at_pace", "ongoing", "work"):  # keeps the computed columns
            if name in self.__dict__:
                rest.__dict__[name] = dropped(self.__dict__[name], position)
        return rest

    def only(self, stays: Sequence[bool]) -> "View":
        return self.of(self.instances.only(stays))

    def of(self, instances: FleetColumns) -> "View":
        return View(self.request, instances, self.policy, self.draw, self.fleet, self.paced)


class Pick(Value, frozen=True):
    instance: InstanceState
    request_class: RequestClass
    rule: str
    reasons: InWords
    ranked: Sequence[InstanceState] = ()  # the compared instances
    scores: Sequence[float] = ()  # score of each of `ranked`; the least wins
    prefill: InstanceState | None = None  # instance that computes the prompt, if not `instance`
    refused: bool = False  # True if no instance may take the request now; `instance` would have been the best
    pull_ms: float | None = None  # predicted time of a pull (rules/pull.py), until the KV has come from `prefill`
    pull_tokens: int = 0  # as many as `instance` could compute in that time, at most its new ones
    weighed: bool = False  # True if a pull was weighed against computing


def ongoing(instance: InstanceState, request_tokens: float) -> float:
    return instance.prefill_tokens + request_tokens * instance.running


def weighted(held: int, tiers: tuple[int, int, int] | None, weights: tuple[float, float]) -> int:
    """Return `held` tokens, weighted in host memory and on disk; `tiers` is None if all are on the device."""
    if tiers is None:
        return held
    _, host, disk = tiers
    return max(0, held - round((1 - weights[0]) * host + (1 - weights[1]) * disk))


def is_sparse(request: RoutingRequest, instances: FleetColumns) -> bool:
    """Return whether few of many instances hold anything of the prompt, so that visiting those is cheaper."""
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
    """Return h_i by id; `own`: values of the instances themselves."""
    prompt, held = request.prompt_tokens, request.held
    if held is None:
        cached = own
    else:
        cached = held.of(ids) if isinstance(held, HeldByLevel) else list(map(held.get, ids, repeat(0)))
    return cached if max(cached, default=0) <= prompt else [min(one, prompt) for one in cached]


def least(view: View, scores: Sequence[float], *then: Sequence[float] | Callable[[], Sequence[float]]) -> int:
    """Return the index of the least score, ties by the least of `then`, then by the draw (in the order of ids)."""
    best = min(scores)
    if scores.count(best) == 1:
        return scores.index(best)
    tied = [position for position, score in enumerate(scores) if score == best]
    for further in then:
        seconds = further() if callable(further) else further
        best = min([seconds[position] for position in tied])
        tied = [position for position in tied if seconds[position] == best]
    return by_turn(view, tied, int(view.draw * len(tied)))


def by_turn(view: View, positions: Sequence[int], turn: int) -> int:
    """Return the index at this turn, in the order of ids."""
    if len(positions) == 1:
        return positions[0]
    if len(positions) == len(view.instances):
        return view.instances.order[turn % len(positions)]
    return sorted(positions, key=view.instances.ids.__getitem__)[turn % len(positions)]
