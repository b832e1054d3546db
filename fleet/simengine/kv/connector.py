"""The interface of every connector, and the transfer that a request asks for."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from fleet.engine.request import EngineRequest

Answer = Awaitable[tuple[int, bytes]]  # (HTTP status, body)


class TransferFailed(Exception):
    """The KV did not arrive; the message says why."""


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class ContextUsage(msgspec.Struct, frozen=True):
    """The context server's usage, repeated in the request to a generation server of TensorRT-LLM."""

    prompt_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class TransferParams(msgspec.Struct, frozen=True):
    """Transfer parameters of a request, for all connectors; other fields are ignored."""

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_request_id: str | None = None
    remote_engine_id: str | None = None
    remote_block_ids: list[list[int]] | None = None
    remote_num_tokens: int | None = None
    transfer_id: str | None = None
    remote_bootstrap_addr: str | None = None
    request_type: str | None = None
    disagg_request_id: int | None = None
    ctx_request_id: int | None = None
    encoded_opaque_state: str | None = None
    ctx_usage: ContextUsage | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None


NO_PARAMS = TransferParams()


@dataclass(frozen=True, slots=True)
class TransferSource:
    """The source from which to pull the KV of a prompt."""

    url: str
    key: str  # name under which the source holds it
    engine_id: str | None  # engine that holds it; None: any
    waits: bool  # True: the source may still be computing the prompt
    most: int | None = None  # number of tokens to take; None: all of the prompt's
    asks: bool = False  # True: poll `lookup` until the prompt is computed, and only then take blocks and a slot


@dataclass(frozen=True, slots=True)
class TransferRequest:
    hold_as: str | None = None  # name under which the blocks are held once the request is finished
    source: TransferSource | None = None  # where to pull the KV from instead of computing the prompt
    first_token: bool = False  # True: the request ends after its first token
    always: bool = False  # True: an answer that ends by itself with this token is also held


@dataclass(frozen=True, slots=True)
class Pulled:
    tokens: int  # leading tokens of the prompt whose KV is now present
    size: int  # transferred bytes
    seconds: float  # virtual seconds


class Connector(Protocol):
    reads: Mapping[str, Callable[[], bytes]]  # handlers of GET
    writes: Mapping[str, Callable[[bytes], Answer]]  # handlers of POST, which raise msgspec.DecodeError

    def parse(self, params: TransferParams, request_id: str) -> TransferRequest:
        """Return the transfer that a request's parameters and id ask for. Raise ApiError."""

    async def lookup(self, source: TransferSource) -> None:
        """Wait until the source has computed the prompt. Raise TransferFailed."""

    async def pull(self, source: TransferSource, request: EngineRequest) -> Pulled:
        """Wait for the KV beyond `request.computed` tokens. Raise TransferFailed."""

    def computed(self, request: EngineRequest, hold_as: str | None) -> msgspec.Struct | None:
        """Take over a computed prompt, or a finished request whose blocks are to be held; return the transfer
        parameters of the response."""

    def decline(self, source: TransferSource) -> None:
        """Give up blocks that will not be pulled, as the request ended or the local cache covered it."""

    async def close(self) -> None: ...
