"""One HTTP request in work: what was asked, its answers, and how far they are."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.engine.request import EngineRequest
from fleet.simengine.answers import SimAnswer
from fleet.simengine.http.refusal import ApiError
from fleet.simengine.kv.connector import TransferSource


@dataclass(frozen=True, slots=True)
class Ask:
    """A request body, understood."""

    model: str | None  # None: the one that is served
    prompts: tuple[bytes, ...]
    max_tokens: int | None  # None: as many as the window allows
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int = 0
    n: int = 1  # answers per prompt
    stream: bool = False
    usage_at_end: bool = False  # of a stream
    usage_in_chunks: bool = False
    kv: Mapping[str, Any] = field(default_factory=dict)  # kv_transfer_params


@dataclass(slots=True, eq=False)
class Choice:
    """One answer."""

    job: "EngineJob"
    index: int
    request: EngineRequest
    answer: SimAnswer
    sent: int = 0  # tokens
    hold_as: str | None = None  # the name under which its blocks are held when it is finished
    source: TransferSource | None = None  # where its KV is to be had, for as long as that has not been asked

    def take(self) -> str:
        """The text of the tokens that came since the last call."""
        upto = self.request.generated
        text = self.answer.text[4 * self.sent : 4 * upto]
        self.sent = upto
        return text

    @property
    def is_complete(self) -> bool:
        return self.request.generated >= self.answer.tokens


@dataclass(slots=True, eq=False)
class EngineJob:
    id: str
    model: str
    ask: Ask
    parts: list[Choice] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))
    unfinished: int = 0  # parts
    is_gone: bool = False  # the client hung up
    failed: ApiError | None = None  # it cannot be answered any more
    kv: dict[str, Any] | None = None  # the answer's kv_transfer_params
    has_news: bool = False
    head: bytes = b""  # what every chunk of a stream begins with; the format's own
    _waiter: "asyncio.Future[None] | None" = None

    @property
    def prompt_tokens(self) -> int:
        return sum(part.request.prompt_tokens for part in self.parts[:: self.ask.n])

    @property
    def cached_tokens(self) -> int:
        return sum(part.request.cached_tokens for part in self.parts[:: self.ask.n])

    @property
    def completion_tokens(self) -> int:
        return sum(part.request.generated for part in self.parts)

    async def progress(self) -> None:
        """Until there are tokens to send, all is done, or the client is gone."""
        while not self.has_news:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.has_news = False

    @property
    def is_complete(self) -> bool:
        return not self.unfinished

    def fail(self, refusal: ApiError) -> None:
        self.failed = refusal
        self.wake()

    def wake(self) -> None:
        self.has_news = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
