"""What a request asks of a connector, and what every connector can do."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fleet.engine.request import EngineRequest

Answer = Awaitable[tuple[int, dict[str, Any]]]  # HTTP status, body


class TransferFailed(Exception):
    """The KV did not come; the message says why."""


@dataclass(frozen=True, slots=True)
class TransferSource:
    """Where the KV of a prompt is to be had."""

    url: str
    key: str  # the name under which it is held there
    engine_id: str | None  # of the engine that holds it; None: whoever answers
    waits: bool  # the prompt may still be in work there


@dataclass(frozen=True, slots=True)
class TransferRequest:
    hold_as: str | None = None  # keep the blocks under this name when the request is finished
    source: TransferSource | None = None  # pull them instead of computing the prompt


@dataclass(frozen=True, slots=True)
class Pulled:
    tokens: int  # of the prompt, from its start, whose KV is there now
    size: int  # bytes that moved
    seconds: float  # of the modelled engine


class Connector(Protocol):
    reads: Mapping[str, Callable[[], dict[str, Any]]]  # GET
    writes: Mapping[str, Callable[[dict[str, Any]], Answer]]  # POST

    def wish(self, params: Mapping[str, Any], request_id: str) -> TransferRequest:
        """What `kv_transfer_params` and the id of a request ask for."""

    async def pull(self, source: TransferSource, request: EngineRequest) -> Pulled:
        """Wait for the KV that `request.computed` tokens do not cover. Raises TransferFailed."""

    def computed(self, request: EngineRequest, hold_as: str | None) -> dict[str, Any] | None:
        """A prompt has been computed, or is finished when it is held; the answer's `kv_transfer_params`."""

    def let_go(self, source: TransferSource) -> None:
        """Nobody will pull it: the request is gone, or its own cache covered it."""

    async def close(self) -> None: ...
