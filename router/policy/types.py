"""Inputs and result of a decision. These are values only: time, randomness and state are arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NewType

from router.policy.reasons import InWords
from router.policy.value import Value

RequestClass = Literal["warm", "medium", "heavy"]
CLASSES: tuple[RequestClass, ...] = ("warm", "medium", "heavy")


Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates measured from the pool's answers; 0 while unknown."""

    prefill_tokens_per_s: float = 0.0  # rate of an instance that computes nothing else
    kv_bytes_per_token: float = 0.0
    transfer_bytes_per_s: float = 0.0  # rate of a KV transfer between instances under the current load
    transfer_setup_s: float = 0.0  # t0: fixed part of a transfer's time
    context_cost: float = 0.0  # cost of a token of context in a decode step, relative to a prefilled token
    compute_tokens_per_s: float = 0.0  # marginal rate of further tokens of a prompt
    pull_extra_s: float = 0.0  # how much longer a pull takes than these rates predict: API, steps of other requests
    # Context length at which attention doubles the cost of a new token, by the engines' law
    equal_cost_tokens: float = 0.0
    work_tokens_per_s: float = 0.0  # like prefill_tokens_per_s, in tokens that cost as much as a token without context

    def transfer_s(self, tokens: int, assumed_bytes_per_s: float = 0.0) -> float:
        """Return the time to move the KV of `tokens`; `assumed_bytes_per_s` applies until a transfer has been
        measured."""
        return self.transfer_setup_s + tokens * self.kv_bytes_per_token / (
            self.transfer_bytes_per_s or assumed_bytes_per_s
        )


UNKNOWN = Rates()


class PoolLoad(Value, frozen=True):
    """The load of a large pool; a decision sees only some of its instances."""

    running: float  # mean R_i
    idle: float  # share of prompt-computing instances with PP_i = 0


class RoutingRequest(Value, frozen=True):
    prompt_tokens: int  # L
    session: str | None = None  # stable key of the session, None if unknown
    bound_to: str | None = None  # instance of the session, None if it is new
    history_tokens: int = 0  # prompt + output tokens of the session's previous request, 0 if unknown
    held: Mapping[str, int] | None = None  # h_i by instance id, 0 if absent; replaces Instance.cached_tokens
    held_tiers: Mapping[str, tuple[int, int, int]] | None = (
        None  # h_i split into (device, host, disk) by instance id; None: all on the device
    )
    rates: Rates = UNKNOWN
    prefix_key: int = 0  # 0–65535, from the hash of the prompt's first 1,024 bytes: equal beginnings, equal keys
    turn: int = 0  # number of requests decided before; round robin keeps no state
    indivisible: str = ""  # why one instance must compute prompt and answer; empty if two instances may
    generates: bool = True  # whether the answer consists of tokens; other answers need no decode instance
    band: int = 0  # priority band; bands below 0 leave some capacity to other bands
    pool: PoolLoad | None = None  # None if the decision sees every instance


KV_UNKNOWN = 2.0  # above every limit, so that instances with unknown load rank last


class InstanceState(Value, frozen=True):
    """An instance as the policy sees it at the moment of the decision. Load includes all routers' requests."""

    id: str
    cached_tokens: int = 0  # h_i: prompt tokens of this request whose KV the instance holds (prefix, whole blocks)
    running: int = 0  # R_i: requests running + waiting
    waiting: int = 0  # q_i; also 0 while unknown
    decodes: int = 0  # D_i
    prefill_tokens: int = 0  # PP_i: prompt tokens still to be computed, queued or running
    kv_usage: float = 0.0  # u_i, 0–1 share of KV blocks, or KV_UNKNOWN
    kv_tokens: int = 0  # KV capacity in tokens, 0 if unknown
    block_size: int = 16  # tokens per KV block
    refused: str = ""  # why the instance cannot take a request; empty if it can
    role: Role = "both"  # "prefill" never decodes, "decode" computes no prompt
    connector: str = ""  # connector for KV blocks, a key of router.flows.OFFLOADS; empty without one
    pair: str = ""  # the only instance that can prefill for it; empty: any with the connector
    pace: float = 1.0  # speed of prefill relative to the pool's median instance
    pulls: int = 0  # KV pulls in progress from this instance
    pull_tokens: int = 0  # part of PP_i that belongs to this router's pulls to it, computed by no GPU here

    @property
    def known(self) -> dict[str, float | int | None]:
        """Return the figures that the engine reports, by field; None if unknown."""
        unknown = self.kv_usage == KV_UNKNOWN
        return {"kv_usage": None if unknown else self.kv_usage, "waiting": None if unknown else self.waiting}


@dataclass(frozen=True, slots=True)
class Candidate:
    id: str
    cached_tokens: int  # h_i
    new_tokens: int  # n_i = L − h_i
    score: float | None  # the strategy's score; None if not ranked
    refused: str = ""  # why the instance was not considered


class Decision(Value, frozen=True):
    """The chosen instance and the reasons. `instance` is empty if none could take the request."""

    instance: str
    request_class: RequestClass
    flow: str  # "colocated", or "offload": prefill on another instance first
    strategy: str
    rule: str  # short name of the rule that decided, such as "session" or "least_decode"
    reasons: InWords  # in order of occurrence
    cached_tokens: int  # on the chosen instance, or on the one with the most cached tokens if none was chosen
    new_tokens: int
    candidates: Sequence[Candidate]  # in the order of the instances
    prefill: str = ""  # instance that computes the prompt of an offload
    prefill_new_tokens: int = 0  # n on the instance `prefill`
    # Predicted time of a pull, if `prefill` was chosen because it holds more of the prompt
    pull_ms: float | None = None
    pull_tokens: int = 0  # tokens that `instance` could compute in that time, at most its new tokens


class Pick(Value, frozen=True):
    """The choice of a strategy."""

    instance: InstanceState
    request_class: RequestClass
    rule: str
    reasons: InWords
    ranked: Sequence[InstanceState] = ()  # the compared instances
    scores: Sequence[float] = ()  # score of each instance in `ranked`; the lowest wins
    prefill: InstanceState | None = None  # instance that computes the prompt, if not `instance`
    refused: bool = False  # True if no instance may take the request now; `instance` would have been the best
    pull_ms: float | None = None  # predicted time of a pull (rules/pull.py), until the KV has arrived from `prefill`
    pull_tokens: int = 0  # tokens that `instance` could compute in that time, at most its new tokens
    weighed: bool = False  # True if a pull was compared with computing


# A parsed, valid policy document, {"classes.heavy_new_tokens": 20000, …}: every parameter that the strategy uses, by
# dotted path. Immutable. It is a plain dict because look-ups in a subclass take three times as long.
ParsedPolicy = NewType("ParsedPolicy", dict[str, Any])


def of_low_bands(policy: ParsedPolicy) -> ParsedPolicy:
    """Return the policy for requests of a band below 0, to which instances count as full at a lower load."""
    most, share = policy["admission.max_inflight_per_instance"], policy["admission.low_band_share"]
    return ParsedPolicy({**policy, "admission.max_inflight_per_instance": max(1, int(most * share))})
