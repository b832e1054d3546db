"""The parts of a strategy."""

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
    affinity: bool = False  # keeps sessions on their instance
    by_pace: bool = False  # always takes into account that instances are unequally fast; else `load.by_pace` says so
    offloads: bool = False  # chooses the prefill instance itself; otherwise `flow.heavy` applies
