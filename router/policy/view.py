"""What a route sees, what it answers, and the few questions that routes share. Everything goes by place in the list."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from router.policy.types import Instance, Policy, Request, RequestClass


@dataclass(frozen=True)  # no slots: the lists below are made when a route first asks, and kept
class View:
    """A request and the instances that may take it (at least one)."""

    request: Request
    instances: Sequence[Instance]
    policy: Policy
    draw: float  # [0, 1): decides between instances that are equally good
    fleet: Sequence[Instance] = ()  # everybody, those that may not take it too: who may compute prompts for others

    @cached_property
    def cached(self) -> list[int]:
        """h_i; an index that claims more than the prompt has is not believed."""
        return cached_tokens(self.request, self.instances)

    @cached_property
    def new(self) -> list[int]:
        """n_i = L − h_i"""
        prompt = self.request.prompt_tokens
        return [prompt - cached for cached in self.cached]

    @cached_property
    def ongoing(self) -> list[float]:
        """PP_i + request_tokens · R_i: prefill still to be computed, and each request as if it were so many tokens."""
        weight = self.policy["load.request_tokens"]
        return [instance.prefill_tokens + weight * instance.running for instance in self.instances]

    @cached_property
    def work(self) -> list[float]:
        """n_i + ongoing_i: what the instance has to do with this request on it. Losing the cache counts as work."""
        return [new + ongoing for new, ongoing in zip(self.new, self.ongoing, strict=True)]

    def cached_on(self, instance: Instance) -> int:
        return cached_tokens(self.request, (instance,))[0]

    def without(self, instance: Instance | None) -> "View":
        if instance is None:
            return self
        return self.of([other for other in self.instances if other is not instance])

    def of(self, instances: Sequence[Instance]) -> "View":
        return replace(self, instances=instances)


@dataclass(frozen=True, slots=True)
class Pick:
    """A route's answer."""

    instance: Instance
    request_class: RequestClass
    rule: str
    reasons: tuple[str, ...]
    ranked: Sequence[Instance] = ()  # those that were compared
    scores: Sequence[float] = ()  # what by, the least wins; as long as `ranked`
    prefill: Instance | None = None  # where the prompt is computed when that is not `instance`
    refused: bool = False  # nobody is to take the request now, `instance` would have been the best


def cached_tokens(request: Request, instances: Sequence[Instance]) -> list[int]:
    prompt, held = request.prompt_tokens, request.held
    if held is None:
        return [instance.cached_tokens if instance.cached_tokens < prompt else prompt for instance in instances]
    get = held.get
    return [cached if (cached := get(instance.id, 0)) < prompt else prompt for instance in instances]


def least(view: View, scores: Sequence[float], *then: Callable[[int], float]) -> int:
    """The place of the least score, ties by the least `then`, and then by the draw (in the order of ids)."""
    best = min(scores)
    if scores.count(best) == 1:
        return scores.index(best)
    tied = [place for place, score in enumerate(scores) if score == best]
    for key in then:
        seconds = [key(place) for place in tied]
        best = min(seconds)
        tied = [place for place, second in zip(tied, seconds, strict=True) if second == best]
    return by_turn(view, tied, int(view.draw * len(tied)))


def by_turn(view: View, places: Sequence[int], turn: int) -> int:
    """The place whose turn it is, in the order of ids."""
    if len(places) == 1:
        return places[0]
    return sorted(places, key=lambda place: view.instances[place].id)[turn % len(places)]
