"""Constants of one engine instance, used by both the simulated engine and the twin. Plain values; seconds are
virtual."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fleet.engine.law import API_S, API_S_PER_TOKEN, Law
from fleet.engine.scheduler import Limits
from fleet.engine.tiers.model import TiersModel

Role = Literal["both", "prefill", "decode"]


# The load for which an engine's constants are known, and the part of another load that lies outside it
EDGE = 0.05  # share of the requests at each end that does not widen a range
TOLERANCE = 1.25  # factor beyond either end within which a value still counts as inside
MOST_OUTSIDE = 0.2  # share of a load's requests above which the part outside matters


@dataclass(frozen=True, slots=True)
class LoadRange:
    """Range of a load, from the 5th to the 95th percentile of its requests."""

    in_flight: tuple[int, int]  # requests on the instance at an arrival, including the new one
    new_tokens: tuple[int, int]  # uncached tokens of a prompt


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request served on one instance."""

    begin_s: float
    end_s: float
    new_tokens: int


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """A load, with one value per request."""

    in_flight: Sequence[int]
    new_tokens: Sequence[int]

    @classmethod
    def of(cls, instances: Sequence[Sequence[ServedRequest]]) -> "RequestLoad":
        flights = [count for served in instances for count in in_flight(served)]
        return cls(flights, [one.new_tokens for served in instances for one in served])

    @property
    def range(self) -> LoadRange:
        return LoadRange(_range(self.in_flight), _range(self.new_tokens))

    def outside(self, known: LoadRange) -> tuple[str, ...]:
        """Describe the parts of this load outside the known range; empty if none matters."""
        found = (
            _beyond("requests at once on an instance", known.in_flight, self.in_flight),
            _beyond("new tokens in a prompt", known.new_tokens, self.new_tokens),
        )
        return tuple(text for text in found if text)


def in_flight(served: Sequence[ServedRequest]) -> list[int]:
    """Return the number of requests in flight when each of them begins, in order of time."""
    begins, ends = sorted(one.begin_s for one in served), sorted(one.end_s for one in served)
    return [bisect_right(begins, at) - bisect_left(ends, at) for at in begins]


def _range(values: Sequence[int]) -> tuple[int, int]:
    ordered = sorted(values)
    edge = int(EDGE * len(ordered))
    return ordered[edge], ordered[-1 - edge]


def _beyond(name: str, known: tuple[int, int], values: Sequence[int]) -> str:
    low, high = known
    above, below = (
        sum(value > high * TOLERANCE for value in values),
        sum(value < low / TOLERANCE for value in values),
    )
    if max(above, below) <= MOST_OUTSIDE * len(values):
        return ""
    side = f"more than {high:,}" if above >= below else f"fewer than {low:,}"
    seen = f"{max(above, below):,} of {len(values):,} requests see {side} {name}"
    return f"{seen}; the calibration did not, and its error is not known there"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLink:
    """The network through which an engine sends KV blocks.
    Published for Mooncake over RDMA: 9.7 GB/s while the sender is idle, about 3 while it computes.
    """

    setup_s: float = 5e-3  # setup of a transfer of any size
    idle_bytes_per_s: float = 9.7e9  # rate while the sender computes nothing, shared by concurrent transfers
    busy_bytes_per_s: float = 3e9  # rate while the sender computes

    def seconds(self, size: int, transfers: int, *, busy: bool) -> float:
        """Return the duration of a transfer of `size` bytes that, at its start, shares the link with `transfers` - 1
        others."""
        rate = self.busy_bytes_per_s if busy else self.idle_bytes_per_s
        return self.setup_s + size * max(transfers, 1) / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferModel(TransferLink):
    """The way in which KV blocks reach an instance from another."""

    bytes_per_token: float
    hold_s: float = 480.0  # time after which blocks that were not pulled are freed
    connect_s: float = 0.0  # setup of the first transfer between two instances
    # True: the decoder gets the request at the same time and polls until the prompt has been computed
    together: bool = False
    poll_s: float = 1e-3  # interval between two polls
    lend_s: float = 0.0  # time for which a decoder keeps an answer's blocks for the prefill of the session's next turn


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The model of one engine; identical instances share one."""

    law: Law
    kv_blocks: int
    limits: Limits  # limits, including the block size
    api_s: float = API_S  # time from the router to the engine's queue
    window: int | None = None  # most tokens of prompt and answer together; None: the capacity of the KV cache
    kv_events: bool = False  # True: the engine publishes events, so that the router knows the instance's blocks exactly
    role: Role = "both"
    pair: str = ""  # the only instance that prefills for it; empty: any with the connector
    together: str = ""  # group of data-parallel ranks that step together; empty: it steps alone
    connector: str = ""  # as in router/contract/connectors.py; empty: KV does not move
    tiers: TiersModel | None = None  # tiers of KV below HBM
    transfers: TransferModel | None = None  # None: no KV arrives, so decoders compute offloaded prompts themselves
    api_s_per_token: float = API_S_PER_TOKEN  # API time per prompt token
    calibrated: LoadRange | None = None  # load for which its constants are known; None: they are not measured

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.limits.block_size
