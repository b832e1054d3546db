"""What every connector can do, and what a request asks of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fleet.engine.request import EngineRequest

Answer = Awaitable[tuple[int, dict[str, Any]]]  # HTTP status, body


class TransferFailed(Exception):
    """The KV did not arrive; the message says why."""


@dataclass(frozen=True, slots=True)
class TransferSource:
    """Where to pull the KV of a prompt from."""

    url: str
    key: str  # the name under which the source holds it
    engine_id: str | None  # of the engine that holds it; None: any
    waits: bool  # the source may still be computing the prompt
    asks: bool = False  # `lookup` until it is computed, and only then take blocks and a slot for it


@dataclass(frozen=True, slots=True)
class TransferRequest:
    hold_as: str | None = None  # hold the blocks under this name when the request is finished
    source: TransferSource | None = None  # pull the KV from here instead of computing the prompt
    first_token: bool = False  # the request ends after its first token


@dataclass(frozen=True, slots=True)
class Pulled:
    tokens: int  # leading tokens of the prompt whose KV is present now
    size: int  # bytes transferred
    seconds: float  # virtual


class Connector(Protocol):
    reads: Mapping[str, Callable[[], dict[str, Any]]]  # GET
    writes: Mapping[str, Callable[[dict[str, Any]], Answer]]  # POST

    def parse(self, params: Mapping[str, Any], request_id: str) -> TransferRequest:
        """What a request's transfer parameters and id ask for. Raises ApiError."""

    async def lookup(self, source: TransferSource) -> None:
        """Wait until the source has computed the prompt. Raises TransferFailed."""

    async def pull(self, source: TransferSource, request: EngineRequest) -> Pulled:
        """Wait for the KV beyond `request.computed` tokens. Raises TransferFailed."""

    def computed(self, request: EngineRequest, hold_as: str | None) -> dict[str, Any] | None:
        """A prompt was computed, or finished if it is to be held. Returns the response's transfer parameters."""

    def decline(self, source: TransferSource) -> None:
        """The blocks will not be pulled: the request ended, or the local cache covered it."""

    async def close(self) -> None: ...
