"""Input and results of the twin. Values only; seconds are virtual."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.engine.engine_model import EngineModel
from fleet.engine.request import NOTHING_CACHED, CachedFrom
from fleet.engine.tiers.model import TiersStats, TierStats
from fleet.engine.tiers.shared import StoreModel
from router.policy.types import ParsedPolicy


@dataclass(frozen=True, slots=True)
class TwinFleet:
    instances: Mapping[str, EngineModel]  # by instance id, as the router knows it
    store: StoreModel | None = None  # store that all of them share


@dataclass(frozen=True, slots=True)
class Arms:
    """Two policies that share a fleet: a request of the candidate arm keeps it for as long as it waits."""

    candidate: ParsedPolicy
    takes: Callable[[str, float], bool]  # session and arrival in s: whether the candidate decides


@dataclass(frozen=True, slots=True)
class Simulated:
    """One request."""

    index: int  # in its trace
    seed: int
    session: str
    sent_s: float  # by the client
    input_tokens: int
    output_tokens: int
    cached_tokens: int  # prompt tokens that the engine found cached
    ttft_s: float | None  # None without an answer
    tpot_s: float | None  # None with a single token, too
    e2e_s: float | None  # until the refusal, when refused
    instance: str  # "" when refused
    request_class: str
    # As routers say it: ok, refused, client_error (longer than KV cache or window), error (KV that is never free)
    outcome: str
    code: str  # code of the refusal or error; "" when answered
    queued_s: float  # in the router's queue
    shadow_changed: bool  # another instance or flow, or a refusal
    # While two arms share the fleet:
    candidate: bool = False  # the candidate decided
    key: str = ""  # the session as the router knows it, else a name of its own
    arm_class: str = ""  # by live's thresholds, on the instance that holds most of the prompt
    second_s: float | None = None  # from sending to the second token; None with a single one, too

    @property
    def session_key(self) -> tuple[int, str | int]:
        """Its session; a request without one is its own."""
        return self.seed, self.session or self.index

    interruptions: int = 0  # steps with another's prefill between two of its tokens
    waited_s: float = 0.0  # part of `ttft_s` in a router's or an engine's queue
    kv_s: float = 0.0  # part of `ttft_s` for KV from another instance, a store or a tier
    cached_from: CachedFrom = NOTHING_CACHED  # `cached_tokens` by place
    transfers: int = 0  # KV transfers from another instance or a store


@dataclass(frozen=True, slots=True)
class Use:
    """Samples of one instance, once a second from the start."""

    kv_usage: tuple[float, ...]  # 0–1 share of the blocks
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    preemptions: int  # in total
    transferring: tuple[int, ...] = ()  # requests whose KV leaves or comes
    blocked_s: float = 0.0  # time in which requests waited though nothing was computed
    tiers: TiersStats | None = None  # below HBM


@dataclass(frozen=True, slots=True)
class TwinOutcome:
    requests: tuple[Simulated, ...]  # by index
    instances: Mapping[str, Use]
    virtual_s: float  # until the last answer
    not_modelled: tuple[str, ...]  # requested by the policy, not modelled by the twin
    store: TierStats | None = None  # store that the instances share
    outside: tuple[str, ...] = ()  # loads outside the calibration's range

    @property
    def doubts(self) -> tuple[str, ...]:
        return (*self.not_modelled, *self.outside)
