"""What the twin is made from and what it says. Values only; seconds are virtual."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.engine.engine_model import EngineModel


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
