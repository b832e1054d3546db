"""One HTTP request in progress: its parameters, its choices and their progress."""

import asyncio
import time
from dataclasses import dataclass, field

import msgspec

from fleet.engine.request import EngineRequest
from fleet.simengine import generation
from fleet.simengine.generation import SimAnswer
from fleet.simengine.http.errors import ApiError
from fleet.simengine.kv.connector import NO_PARAMS, TransferParams, TransferSource


@dataclass(frozen=True, slots=True)
class RequestParams:
    """A parsed request body."""

    model: str | None  # None: the served model
    prompts: tuple[bytes, ...]
    max_tokens: int | None  # None: up to the window
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int = 0
    salt: str = ""
    n: int = 1  # number of answers per prompt
    stream: bool = False
    usage_at_end: bool = False  # only used for streams
    usage_in_chunks: bool = False
    logprobs: int | None = None  # number of alternatives listed per token; None: no log probabilities
    returns_ids: bool = False  # True: the answer includes the token ids of prompt and answer
    kv: TransferParams = NO_PARAMS  # kv_transfer_params, or disaggregated_params

    @property
    def is_context_request(self) -> bool:
        """Return whether it is a request to a TensorRT-LLM context server."""
        return self.kv.request_type == "context_only"


class CachedByTier(msgspec.Struct, frozen=True):
    """Cached tokens under SGLang's names."""

    device: int
    host: int
    storage: int


class CachedDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cached tokens of a prompt, as in `usage`."""

    cached_tokens: int
    cached_tokens_details: CachedByTier | None = None  # with tiers below the GPU


@dataclass(slots=True, eq=False)
class Choice:
    """One answer."""

    job: "EngineJob"
    index: int
    request: EngineRequest
    answer: SimAnswer
    sent: int = 0  # number of tokens sent
    taken: range = range(0)  # tokens returned by the latest call of `take`
    hold_as: str | None = None  # name under which its blocks are held once it is finished
    source: TransferSource | None = None  # where to pull its KV from, until that is requested

    def take(self) -> str:
        """Return the text of the tokens generated since the last call."""
        upto = self.request.generated
        text = self.answer.text[4 * self.sent : 4 * upto]
        self.taken = range(self.sent, upto)
        self.sent = upto
        return text

    @property
    def is_complete(self) -> bool:
        return self.request.generated >= self.answer.tokens

    def ids(self, taken: range | None = None) -> list[int]:
        """Return the token ids of the prompt, or those `taken` of the answer; one id may span the end of the prompt
        and the beginning of the answer."""
        prompt, prompt_tokens = self.job.params.prompts[self.index // self.job.params.n], self.request.prompt_tokens
        found = generation.to_ids(prompt + self.answer.text.encode())
        if taken is None:
            return found[:prompt_tokens]
        return found[prompt_tokens + taken.start : prompt_tokens + taken.stop]


@dataclass(slots=True, eq=False)
class EngineJob:
    id: str
    model: str
    params: RequestParams
    choices: list[Choice] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))
    unfinished: int = 0  # number of unfinished choices
    is_gone: bool = False  # True if the client disconnected
    failed: ApiError | None = None  # why the request cannot be completed
    kv: msgspec.Struct | None = None  # transfer parameters of the answer
    handover: asyncio.Future[bool] | None = None  # awaited before the answer; False: nobody took the KV
    has_news: bool = False
    media: tuple[str, ...] = ()  # the engine's tiers below the GPU
    head: bytes = b""  # beginning of every chunk of a stream, for the format
    _waiter: "asyncio.Future[None] | None" = None

    @property
    def prompt_tokens(self) -> int:
        return sum(choice.request.prompt_tokens for choice in self.choices[:: self.params.n])

    @property
    def cached_tokens(self) -> int:
        return sum(choice.request.cached_tokens for choice in self.choices[:: self.params.n])

    @property
    def cached_details(self) -> CachedDetails:
        if not self.media:
            return CachedDetails(self.cached_tokens)
        found = [choice.request.cached_from(self.media) for choice in self.choices[:: self.params.n]]
        tiers = CachedByTier(
            device=sum(each.device for each in found),
            host=sum(each.host for each in found),
            storage=sum(each.disk for each in found),
        )
        return CachedDetails(self.cached_tokens, tiers)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.request.generated for choice in self.choices)

    async def progress(self) -> None:
        """Wait until there are tokens to send, the job is complete, or the client has left."""
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

    def fail(self, error: ApiError) -> None:
        self.failed = error
        self.wake()

    def let_go(self) -> None:
        """Stop waiting for another engine to take the KV."""
        if self.handover is not None and not self.handover.done():
            self.handover.set_result(False)

    def wake(self) -> None:
        self.has_news = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
