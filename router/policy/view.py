"""What a route sees, what it answers, and the few questions that routes share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from router.policy.types import Instance, Policy, Request, RequestClass


@dataclass(frozen=True, slots=True)
class View:
    """A request and the instances that may take it (at least one)."""

    request: Request
    instances: Sequence[Instance]
    policy: Policy
    draw: float  # [0, 1): decides between instances that are equally good

    def new_tokens(self, instance: Instance) -> int:
        """n_i; an index that claims more than the prompt has does not make it negative."""
        return max(self.request.prompt_tokens - instance.cached_tokens, 0)

    def without(self, instance: Instance | None) -> "View":
        if instance is None:
            return self
        return replace(self, instances=[other for other in self.instances if other is not instance])


@dataclass(frozen=True, slots=True)
class Pick:
    """A route's answer."""

    instance: Instance
    request_class: RequestClass
    rule: str
    reasons: tuple[str, ...]
    scores: Mapping[str, float] = field(default_factory=dict)  # by instance, what was ranked by; the least wins


def least(view: View, *keys: Sequence[float]) -> Instance:
    """The instance with the least first key, ties by the next ones, then by the draw (in the order of ids)."""
    tied: Sequence[int] = range(len(view.instances))
    for key in keys:
        best = min([key[index] for index in tied])
        tied = [index for index in tied if key[index] == best]
        if len(tied) == 1:
            break
    return by_turn([view.instances[index] for index in tied], int(view.draw * len(tied)))


def by_turn(instances: Sequence[Instance], turn: int) -> Instance:
    """The instance whose turn it is, in the order of ids."""
    if len(instances) == 1:
        return instances[0]
    return sorted(instances, key=_id)[turn % len(instances)]


def scores_of(view: View, scores: Sequence[float]) -> dict[str, float]:
    return {instance.id: score for instance, score in zip(view.instances, scores, strict=True)}


def _id(instance: Instance) -> str:
    return instance.id
