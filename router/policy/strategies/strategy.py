"""The parts of a strategy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from router.policy.schema.parameter import Parameter
from router.policy.types import ParsedPolicy, RoutingRequest
from router.policy.view import Pick, View

REQUESTS_FIRST = 100_000_000  # tokens that a request weighs where requests are compared before tokens
TOKENS_FIRST = 1
COMPARED = 128  # instances of a larger pool
FEWER = 32  # compared if the least score is among the least loads or weights, or if none is compared


Weights = tuple[float, float]  # in a score, of a request and of a token of context on an instance, as tokens to compute


@dataclass(frozen=True, slots=True)
class Shortlisting:
    """Which instances of a large pool the strategy compares (router/pool/shortlist.py)."""

    by: Literal["load", "draw", "turn"] = "load"  # cache and least load; any of them; those whose turn it is
    request_tokens: int | None = None  # weight of a request in the load; None: the policy's load.request_tokens
    most: int = COMPARED  # instances
    weights: Callable[[RoutingRequest, ParsedPolicy], Weights] | None = None
    key: Callable[[RoutingRequest], str | None] | None = None  # key whose nearest instances by hash are compared, too


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
    shortlisting: Shortlisting = Shortlisting()
    offloads: bool = False  # chooses the prefill instance itself; otherwise `flow.heavy` applies
