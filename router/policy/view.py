"""Input and result of a strategy, and the questions that strategies share. Instances are named by index."""

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
SPARSE = 4  # times as many instances as hold something of a prompt


class kept(Generic[T]):
    """functools.cached_property without its lock, which costs as much as the value itself."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, view: Any, owner: type) -> T:
        made = view.__dict__[self._name] = self._make(view)
        return made


@dataclass  # no slots: the lists below are made on first use and kept
class View:
    """A request and the instances that may take it (at least one)."""

    request: RoutingRequest
    instances: FleetColumns
    policy: ParsedPolicy
    draw: float  # [0, 1): decides between instances that are equally good
    fleet: FleetColumns  # every instance, including those that cannot take the request: they can prefill for others
    paced: bool = False  # some instances are faster than others, and the policy takes it into account

    @kept
    def cached(self) -> Sequence[int]:
        """h_i, at most the length of the prompt. Tokens below the device count less, as they have to be loaded."""
        request, ids = self.request, self.instances.ids
        held_by, tiers = request.held, request.held_tiers
        # Of a plain dictionary, as of all but the largest pools, at once; a thousand instances have another kind
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
        """PP_i + request_tokens · R_i: prefill still to be computed, and each request as if it were so many tokens."""
        return self.instances.column(ongoing, self.policy["load.request_tokens"])

    @kept
    def work(self) -> list[float]:
        """(n_i + ongoing_i)/pace_i: what the instance has to do with this request on it, in tokens of the pool's median
        instance. Losing the cache counts as work."""
        return self.at_pace(list(map(add, self.new, self.ongoing)))

    def at_pace(self, tokens: list[Any]) -> list[Any]:
        """Tokens to compute on each instance, as many as the pool's median instance would compute in that time."""
        return list(map(truediv, tokens, self.instances.pace)) if self.paced else tokens

    def pace_of(self, instance: InstanceState) -> float:
        return instance.pace if self.paced else 1.0

    def cached_on(self, instance: InstanceState) -> int:
        """h_i of one instance."""
        held, tiers = self.held_on(instance), self.request.held_tiers
        return held if tiers is None else weighted(held, tiers.get(instance.id), self._tier_weights)

    def held_on(self, instance: InstanceState) -> int:
        """Tokens of the prompt that it holds, on whatever tier."""
        request = self.request
        cached = instance.cached_tokens if request.held is None else request.held.get(instance.id, 0)
        return cached if cached < request.prompt_tokens else request.prompt_tokens

    def without(self, instance: InstanceState | None) -> "View":
        position = self.instances.position(instance.id) if instance is not None else None
        if position is None:
            return self
        rest = self.of(self.instances.without(position))
        for name in ("cached", "new", "new_at_pace", "ongoing", "work"):  # keep the columns that are already computed
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
    prefill: InstanceState | None = None  # where the prompt is computed when that is not `instance`
    refused: bool = False  # no instance may take the request now; `instance` would have been the best
    pull_ms: float | None = None  # predicted time of a pull (rules/pull.py), until the KV has come from `prefill`
    pull_tokens: int = 0  # as many as `instance` could compute in that time, at most its new ones
    weighed: bool = False  # a pull against computing


def ongoing(instance: InstanceState, request_tokens: float) -> float:
    return instance.prefill_tokens + request_tokens * instance.running


def weighted(held: int, tiers: tuple[int, int, int] | None, weights: tuple[float, float]) -> int:
    """`held` tokens, those in host memory and on disk by their weights; `tiers` is None when all are on the device."""
    if tiers is None:
        return held
    _, host, disk = tiers
    return max(0, held - round((1 - weights[0]) * host + (1 - weights[1]) * disk))


def is_sparse(request: RoutingRequest, instances: FleetColumns) -> bool:
    """Few of many instances hold anything of the prompt: cheaper to go through those than through all."""
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
    """h_i by id; `own` are the values of the instances themselves."""
    prompt, held = request.prompt_tokens, request.held
    if held is None:
        cached = own
    else:
        cached = held.of(ids) if isinstance(held, HeldByLevel) else list(map(held.get, ids, repeat(0)))
    return cached if max(cached, default=0) <= prompt else [min(one, prompt) for one in cached]


def least(view: View, scores: Sequence[float], *then: Callable[[], Sequence[float]]) -> int:
    """The index of the least score, ties by the least of `then`, and then by the draw (in the order of ids)."""
    best = min(scores)
    if scores.count(best) == 1:
        return scores.index(best)
    tied = [position for position, score in enumerate(scores) if score == best]
    for further in then:
        seconds = further()
        best = min([seconds[position] for position in tied])
        tied = [position for position in tied if seconds[position] == best]
    return by_turn(view, tied, int(view.draw * len(tied)))


def by_turn(view: View, positions: Sequence[int], turn: int) -> int:
    """The index whose turn it is, in the order of ids."""
    if len(positions) == 1:
        return positions[0]
    if len(positions) == len(view.instances):
        return view.instances.order[turn % len(positions)]
    return sorted(positions, key=view.instances.ids.__getitem__)[turn % len(positions)]
