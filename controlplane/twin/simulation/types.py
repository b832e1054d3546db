"""What the twin is made from and what it says. Values only; seconds are virtual."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.engine.law import API_S, Law
from fleet.engine.scheduler import Limits
from router.policy.types import Role


@dataclass(frozen=True, slots=True)
class TransferModel:
    """How KV blocks reach an instance from another one; source: the figures of the sim kind's options."""

    bytes_per_token: float
    setup_s: float = 5e-3  # of a transfer, however small
    idle_bytes_per_s: float = 9.7e9  # while the sender computes nothing; transfers at the same time share it
    busy_bytes_per_s: float = 3e9  # while it does
    hold_s: float = 480.0  # blocks that nobody has pulled by then are free again


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How one instance computes; instances that are alike share one."""

    law: Law
    kv_blocks: int
    limits: Limits  # with the size of a block
    api_s: float = API_S  # from the router to the engine's queue
    window: int | None = None  # tokens of prompt and answer at most; None: what the KV cache has room for
    kv_events: bool = False  # it publishes them, so that the router knows what it holds instead of guessing
    role: Role = "both"
    connector: str = ""  # how KV reaches it, as the router knows it; empty when it does not
    transfers: TransferModel | None = (
        None  # None: no KV comes, and what would be offloaded is computed where it decodes
    )

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.limits.block_size


@dataclass(frozen=True, slots=True)
class TwinFleet:
    instances: Mapping[str, EngineModel]  # by instance id, as the router knows it


@dataclass(frozen=True, slots=True)
class Simulated:
    """One request."""

    index: int  # in its trace
    seed: int
    session: str
    sent_s: float  # by the client
    input_tokens: int
    output_tokens: int
    cached_tokens: int  # of the prompt, as the engine found them
    ttft_s: float | None  # None when nothing was answered
    tpot_s: float | None  # None of a single token as well
    e2e_s: float | None  # of a refused one: until it was refused
    instance: str  # "" when no instance took it
    request_class: str
    outcome: str  # ok, refused, or error: no engine could ever hold it
    code: str  # why it was refused, as the router says it; "" of those answered
    queued_s: float  # waiting in the router for room
    shadow_instance: str  # whom the shadow policy would have chosen in the same situation; "" without one
    shadow_class: str
    shadow_changed: bool  # it would have decided otherwise: another instance, another flow, or to refuse


@dataclass(frozen=True, slots=True)
class Use:
    """One instance once a second, from the start on."""

    kv_usage: tuple[float, ...]  # 0–1 share of the blocks
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    preemptions: int  # in all


@dataclass(frozen=True, slots=True)
class TwinOutcome:
    requests: tuple[Simulated, ...]  # by index
    instances: Mapping[str, Use]
    virtual_s: float  # until the last answer
    not_modelled: tuple[str, ...]  # what a policy asks for and the twin leaves out, in words
