"""Interfaces of a strategy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from router.policy.schema.parameter import Parameter
from router.policy.types import ParsedPolicy, Pick, RoutingRequest
from router.policy.view import View

REQUESTS_FIRST = 100_000_000  # weight of a request; large, so that requests are compared before tokens
TOKENS_FIRST = 1
COMPARED = 128  # instances compared in a larger pool
# Instances compared if the lowest score is among the lowest loads or weights, or if the strategy has no score
FEWER = 32


Weights = tuple[float, float]  # (a request, a token of context) on an instance, in tokens to compute


@dataclass(frozen=True, slots=True)
class Shortlisting:
    """The selection of a large pool's instances for a strategy (router/pool/shortlist.py)."""

    by: Literal["load", "draw", "turn"] = "load"  # by cache and lowest load, at random, or in turn
    request_tokens: int | None = None  # weight of a request in the load; None: the policy's load.request_tokens
    most: int = COMPARED  # most instances compared
    weights: Callable[[RoutingRequest, ParsedPolicy], Weights] | None = None
    key: Callable[[RoutingRequest], str | None] | None = None  # key by whose hash the nearest instances are added


def never(policy: ParsedPolicy) -> bool:
    return False


def always(policy: ParsedPolicy) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to choose among the instances that may take a request."""

    name: str
    title: str
    summary: str  # the rule in one sentence
    formula: str  # the rule in symbols, as in docs/policies.md
    rank: Callable[[View], Pick]
    parameters: tuple[Parameter, ...] = ()  # own parameters, with paths "strategy.…"
    affinity: bool = False  # keeps sessions on their instance
    by_pace: bool = False  # always divides by pace
    as_published: bool = False  # divides by pace only if `load.by_pace` is on, because the published rule does not
    reads_kv: Callable[[ParsedPolicy], bool] = never  # whether the choice depends on the KV usage of instances
    kv_optional: bool = False  # the strategy also works well with instances that do not report their KV
    shortlisting: Shortlisting = Shortlisting()
    offloads: bool = False  # the strategy chooses the prefill instance itself; otherwise `flow.heavy` applies
