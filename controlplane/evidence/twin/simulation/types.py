"""The input and results of the twin. These are values only; seconds are virtual."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.engine.engine_model import EngineModel
from fleet.engine.request import NOTHING_CACHED, CachedFrom
from fleet.engine.tiers.model import TiersStats, TierStats
from fleet.engine.tiers.shared import StoreModel
from router.policy.types import ParsedPolicy
from router.policy.value import Value


@dataclass(frozen=True, slots=True)
class TwinFleet:
    instances: Mapping[str, EngineModel]  # model by instance id, as used in the router
    store: StoreModel | None = None  # store shared by all of them


@dataclass(frozen=True, slots=True)
class Arms:
    """Two policies that share a fleet. A request keeps its arm while it waits."""

    candidate: ParsedPolicy
    takes: Callable[[str, float], bool]  # whether the candidate decides, by session and arrival in s


class Simulated(Value, frozen=True):
    """The outcome of one request."""

    index: int  # index in the trace
    seed: int
    session: str
    sent_s: float  # time at which the client sent it
    input_tokens: int
    output_tokens: int
    cached_tokens: int  # prompt tokens that were in the engine's cache
    ttft_s: float | None  # None without an answer
    tpot_s: float | None  # None without an answer or with a single token
    e2e_s: float | None  # time until the answer's end or the refusal
    instance: str  # empty if refused
    request_class: str
    # As in routers: ok, refused, client_error (longer than KV cache or window), error (KV that never becomes free)
    outcome: str
    code: str  # code of the refusal or error; empty if answered
    queued_s: float  # time in the router's queue
    shadow_changed: bool  # True if the shadow chose another instance or flow, or refused
    # Set while two arms share the fleet
    candidate: bool = False  # True if the candidate decided
    key: str = ""  # session as identified by the router, otherwise a unique name
    arm_class: str = ""  # class by the live version's thresholds, on the instance that holds most of the prompt
    second_s: float | None = None  # time from sending to the second token; also None with a single token

    @property
    def session_key(self) -> tuple[int, str | int]:
        """Return the request's session; a request without one is a session by itself."""
        return self.seed, self.session or self.index

    interruptions: int = 0  # steps with another request's prefill between two of its tokens
    waited_s: float = 0.0  # part of `ttft_s` in a router's or an engine's queue
    kv_s: float = 0.0  # part of `ttft_s` for KV from another instance, a store or a tier
    cached_from: CachedFrom = NOTHING_CACHED  # `cached_tokens` by place
    transfers: int = 0  # KV transfers from another instance or a store


@dataclass(frozen=True, slots=True)
class SimulatedUse:
    """The samples of one instance, one per second from the start."""

    kv_usage: tuple[float, ...]  # share of the blocks, 0–1
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    preemptions: int  # number in total
    transferring: tuple[int, ...] = ()  # requests whose KV is being sent or received
    blocked_s: float = 0.0  # time for which requests waited although nothing was computed
    tiers: TiersStats | None = None  # tiers below HBM


@dataclass(frozen=True, slots=True)
class TwinOutcome:
    requests: tuple[Simulated, ...]  # sorted by index
    instances: Mapping[str, SimulatedUse]
    virtual_s: float  # time until the last answer
    not_modelled: tuple[str, ...]  # features that the policy requests but the twin does not model
    store: TierStats | None = None  # store that the instances share
    outside: tuple[str, ...] = ()  # loads outside the calibration's range

    @property
    def doubts(self) -> tuple[str, ...]:
        return (*self.not_modelled, *self.outside)
