"""The constants of one engine instance, as the simulated engine and the twin compute with them. Values; seconds are
virtual."""

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

    setup_s: float = 5e-3  # per transfer, however small
    idle_bytes_per_s: float = 9.7e9  # while the sender computes nothing; concurrent transfers share it
    busy_bytes_per_s: float = 3e9  # while it computes

    def seconds(self, size: int, transfers: int, *, busy: bool) -> float:
        """Duration of a transfer of `size` bytes that shares the link with `transfers` - 1 others when it starts."""
        rate = self.busy_bytes_per_s if busy else self.idle_bytes_per_s
        return self.setup_s + size * max(transfers, 1) / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferModel(TransferLink):
    """How KV blocks reach an instance from another one."""

    bytes_per_token: float
    hold_s: float = 480.0  # blocks that are not pulled within this time are freed
    connect_s: float = 0.0  # at the first transfer of a pair of instances
    together: bool = False  # the decoder gets the request with the sender, and asks until the prompt is computed
    poll_s: float = 1e-3  # between two of these questions


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Identical instances share one."""

    law: Law
    kv_blocks: int
    limits: Limits  # with the block size
    api_s: float = API_S  # from the router to the engine's queue
    window: int | None = None  # tokens of prompt and answer at most; None: the capacity of the KV cache
    kv_events: bool = False  # published: the router knows what the instance holds instead of guessing
    role: Role = "both"
    pair: str = ""  # name of the only instance that prefills for it; empty: any with the connector
    together: str = ""  # group of data-parallel ranks that step together; empty: it steps for itself
    connector: str = ""  # router/contract/connectors.py; empty: KV does not move
    tiers: TiersModel | None = None  # KV below HBM
    transfers: TransferModel | None = None  # None: no KV arrives, offloaded prompts are computed where they decode
    api_s_per_token: float = API_S_PER_TOKEN  # time per token of the prompt
    calibrated: LoadRange | None = None  # the load that its constants are known for; None: they are not measured

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.limits.block_size
