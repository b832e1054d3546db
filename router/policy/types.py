"""Inputs and result of a decision. Values only: time, randomness and state are arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from router.policy.reasons import InWords
from router.policy.value import Value

RequestClass = Literal["warm", "medium", "heavy"]
CLASSES: tuple[RequestClass, ...] = ("warm", "medium", "heavy")


Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates measured from the pool's answers; 0: not known yet."""

    prefill_tokens_per_s: float = 0.0  # rate of one instance that computes nothing else
    kv_bytes_per_token: float = 0.0
    transfer_bytes_per_s: float = 0.0  # rate of one KV transfer between instances, under the present load
    transfer_setup_s: float = 0.0  # t0: of a transfer, however small
    context_cost: float = 0.0  # the engines' law: a decode step reads a context of one token / prefill of one token
    compute_tokens_per_s: float = 0.0  # rate for the tokens by which one prompt is longer than another, on one instance
    pull_extra_s: float = 0.0  # a pull's time beyond what the rates above predict: the API, steps beside other requests
    equal_cost_tokens: float = 0.0  # the engines' law: context that costs a new token as much as everything else

    def transfer_s(self, tokens: int, assumed_bytes_per_s: float = 0.0) -> float:
        """To move the KV of that many tokens; `assumed_bytes_per_s` holds until a transfer was measured."""
        return self.transfer_setup_s + tokens * self.kv_bytes_per_token / (
            self.transfer_bytes_per_s or assumed_bytes_per_s
        )


UNKNOWN = Rates()


class PoolLoad(Value, frozen=True):
    """Of a large pool, of which a decision sees some instances."""

    running: float  # mean R_i
    idle: float  # share of the instances that compute prompts and have PP_i = 0


class RoutingRequest(Value, frozen=True):
    prompt_tokens: int  # L
    session: str | None = None  # stable key of the session, None when unknown
    bound_to: str | None = None  # instance that the session is bound to, None when it is new
    history_tokens: int = 0  # prompt + output tokens of the session's previous request, 0 when unknown
    held: Mapping[str, int] | None = (
        None  # h_i by instance id, none is 0; when given, Instance.cached_tokens is not read
    )
    held_tiers: Mapping[str, tuple[int, int, int]] | None = (
        None  # parts of h_i, the tokens on (device, host, disk) by instance id; None: all of them on the device
    )
    rates: Rates = UNKNOWN
    prefix_key: int = 0  # 0–65535, from the hash of the prompt's first 1,024 bytes: equal beginnings, equal keys
    turn: int = 0  # how many requests the router has decided before: round robin keeps no state of its own
    indivisible: str = ""  # why one instance must compute the prompt and the answer; empty when two may
    generates: bool = True  # an answer of tokens; others need no instance that decodes
    band: int = 0  # band of priority; those below 0 leave some capacity to the others
    pool: PoolLoad | None = None  # None: the decision sees every instance


KV_UNKNOWN = 2.0  # as a KV usage, above every limit: an instance whose load is not known comes after all others


class InstanceState(Value, frozen=True):
    """One instance as the policy sees it, at the moment of the decision. Load is what all routers have sent."""

    id: str
    cached_tokens: int = 0  # h_i: prompt tokens of this request whose KV the instance holds (prefix, whole blocks)
    running: int = 0  # R_i: requests running + waiting
    waiting: int = 0  # q_i; 0 too while it is not known
    decodes: int = 0  # D_i
    prefill_tokens: int = 0  # PP_i: prompt tokens still to be computed, queued or running
    kv_usage: float = 0.0  # u_i, 0–1 share of KV blocks, or KV_UNKNOWN
    kv_tokens: int = 0  # KV capacity in tokens, 0 when unknown
    block_size: int = 16  # tokens per KV block
    refused: str = ""  # why it cannot take a request; empty when it can
    role: Role = "both"  # "prefill" never decodes, "decode" computes no prompt
    connector: str = ""  # how KV blocks leave and reach it, a key of router.flows.OFFLOADS; empty when they cannot
    pair: str = ""  # id of the only instance that can prefill for it; empty: any with the connector
    pace: float = 1.0  # how fast it computes prompts, against the pool's median instance
    pulls: int = 0  # KV pulls under way from it
    pull_tokens: int = 0  # part of PP_i that this router's pulls to it stand for: no GPU computes it

    @property
    def known(self) -> dict[str, float | int | None]:
        """What its engine tells of itself, by field; None where it is not known."""
        unknown = self.kv_usage == KV_UNKNOWN
        return {"kv_usage": None if unknown else self.kv_usage, "waiting": None if unknown else self.waiting}


@dataclass(frozen=True, slots=True)
class Candidate:
    id: str
    cached_tokens: int  # h_i
    new_tokens: int  # n_i = L − h_i
    score: float | None  # the strategy's score; None if it did not rank this instance
    refused: str = ""  # why it was not considered


class Decision(Value, frozen=True):
    """The chosen instance and why. `instance` is empty when none could take the request."""

    instance: str
    request_class: RequestClass
    flow: str  # "colocated", or "offload": prefill on another instance first
    strategy: str
    rule: str  # short name of the rule that decided, for example "session", "least_decode"
    reasons: InWords  # in the order they were met
    cached_tokens: int  # on the chosen instance (on the best by cache when none was chosen)
    new_tokens: int
    candidates: Sequence[Candidate]  # in the order of the instances
    prefill: str = ""  # the instance that computes the prompt when the flow is an offload
    prefill_new_tokens: int = 0  # n there
    pull_ms: float | None = None  # predicted, where that instance was chosen as it holds more of the prompt
    pull_tokens: int = 0  # as many as `instance` could compute in that time, at most its new ones


class ParsedPolicy(dict[str, Any]):
    """A parsed, valid policy document: {"classes.heavy_new_tokens": 20000, …}, every parameter that the strategy uses
    by its dotted path. Never changed. A dict, as a decision looks up fifteen of them."""

    @cached_property
    def of_low_bands(self) -> "ParsedPolicy":
        """The same for requests of a band below 0: instances count as full earlier."""
        most, share = self["admission.max_inflight_per_instance"], self["admission.low_band_share"]
        return ParsedPolicy({**self, "admission.max_inflight_per_instance": max(1, int(most * share))})
