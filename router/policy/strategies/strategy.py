"""What a route is."""

from collections.abc import Callable
from dataclasses import dataclass

from router.policy.schema.parameter import Parameter
from router.policy.view import Pick, View


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to choose among the instances that may take a request."""

    name: str
    title: str
    summary: str  # the rule in one sentence
    formula: str  # the rule in symbols, those of docs/policies.md
    rank: Callable[[View], Pick]
    parameters: tuple[Parameter, ...] = ()  # its own, each with a path "strategy.…"
    affinity: bool = False  # whether it keeps sessions where they are
    offloads: bool = False  # whether it chooses by itself where a prompt is computed; else `flow.heavy` says so
