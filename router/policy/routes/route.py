"""What a route is."""

from collections.abc import Callable
from dataclasses import dataclass

from router.policy.parameter import Parameter
from router.policy.view import Pick, View


@dataclass(frozen=True, slots=True)
class Route:
    """One way to choose among the instances that may take a request."""

    name: str
    title: str
    summary: str  # the rule in one sentence
    rank: Callable[[View], Pick]
    parameters: tuple[Parameter, ...] = ()  # its own, each with a path "route.…"
    affinity: bool = False  # whether it keeps sessions where they are
