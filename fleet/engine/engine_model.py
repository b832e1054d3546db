"""Constants of one engine instance, shared by the simulated engine and the twin. Values; seconds are virtual."""

from dataclasses import dataclass
from typing import Literal

from fleet.engine.law import API_S, API_S_PER_TOKEN, Law
from fleet.engine.load_range import LoadRange
from fleet.engine.scheduler import Limits
from fleet.engine.tiers.model import TiersModel

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLink:
    """The network that an engine sends KV blocks through.

    Published for Mooncake over RDMA: 9.7 GB/s while the sender is idle, about 3 while it computes.
    """

    setup_s: float = 5e-3  # setup of a transfer of any size
    idle_bytes_per_s: float = 9.7e9  # rate while the sender computes nothing; concurrent transfers share it
    busy_bytes_per_s: float = 3e9  # rate while the sender computes

    def seconds(self, size: int, transfers: int, *, busy: bool) -> float:
        """Return the duration of a transfer of `size` bytes that shares the link with `transfers` - 1 others when it
        starts."""
        rate = self.busy_bytes_per_s if busy else self.idle_bytes_per_s
        return self.setup_s + size * max(transfers, 1) / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferModel(TransferLink):
    """How KV blocks reach an instance from another one."""

    bytes_per_token: float
    hold_s: float = 480.0  # time after which blocks that were not pulled are freed
    connect_s: float = 0.0  # setup of the first transfer between two instances
    together: bool = False  # True: the decoder gets the request at once, and polls until the prompt is computed
    poll_s: float = 1e-3  # interval between two polls


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The model of one engine; identical instances share one."""

    law: Law
    kv_blocks: int
    limits: Limits  # limits, block size included
    api_s: float = API_S  # time from the router to the engine's queue
    window: int | None = None  # most tokens of prompt and answer together; None: the capacity of the KV cache
    kv_events: bool = False  # True: events are published, so the router knows the instance's blocks instead of guessing
    role: Role = "both"
    pair: str = ""  # the only instance that prefills for it; empty: any with the connector
    together: str = ""  # group of data-parallel ranks that step together; empty: it steps alone
    connector: str = ""  # router/contract/connectors.py; empty: KV does not move
    tiers: TiersModel | None = None  # tiers of KV below HBM
    transfers: TransferModel | None = None  # None: no KV arrives, so offloaded prompts are computed where they decode
    api_s_per_token: float = API_S_PER_TOKEN  # API time per prompt token
    calibrated: LoadRange | None = None  # load for which its constants are known; None: they are not measured

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.limits.block_size
