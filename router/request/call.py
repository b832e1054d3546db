"""One request on its way through the router: what came, what was decided, what became of it."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.contract.api_keys import PublishedKey
from router.contract.traffic import BLOCK_CHUNKS
from router.policy.types import Decision
from router.pool.pool import Pool
from router.prefix.exact.stretches import Tokens
from router.prefix.forecast.cache_forecast import Sent
from router.request.offload import Offload
from router.tokenize.prompt import Prompt
from router.upstream.usage import Usage

# Of a request that was refused before it had either
NOWHERE = Pool("")
UNREAD = Prompt(model="", rendered=b"", token_ids=None, session=None, stream=False, usage_asked=False)


@dataclass(slots=True)
class Attempt:
    instance: str
    status: int | None = None  # None when it gave none
    error: str = ""


@dataclass(slots=True)
class Call:
    id: str
    api_path: str
    at: float  # s, Unix
    started: float  # s, of the clock that all others here are read from
    target: bytes = b""  # path and query
    forwarded: bytes = b""  # header lines that go on to the engine
    body: bytes = b""
    pool: Pool = NOWHERE
    prompt: Prompt = UNREAD
    chunks: Sequence[int] = ()  # chain hashes of the prompt
    block_hashes: tuple[tuple[int, list[int]], ...] = ()  # (tokens in a block, hashes) where engines tell of blocks
    exactly: Mapping[str, Tokens] = field(default_factory=dict)  # by instance, held when its turn comes, by its events
    under_way: Sent | None = None  # on the instance that computes it
    exact_tokens: int | None = None  # on the instance it went to, by its events; None when they were not asked
    approximate_tokens: int = 0  # the same by the approximate index
    index: str = "none"  # which of the two was believed
    blocks: bytes = b""  # once it is over: those that end a block of recorded traffic, eight bytes each
    token_ids: bool = False  # once it is over: the prompt came as token ids
    prompt_tokens: int = 0  # L
    turn: int = 0  # how many requests of the pool came before
    session: str | None = None
    session_key: str | None = None  # a hash of pool and session: what policies and receipts know it by
    session_shared: bool = False  # other routers know the session by the same name
    pause_s: float | None = None  # since the session's previous request
    strip_usage: bool = False
    decision: Decision | None = None
    version: int = 0  # of the policy that decided
    policy: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    offload: Offload | None = None  # of its prefill, when the policy wanted that
    key: PublishedKey | None = None  # the API key that was shown
    charged: float | None = None  # tokens that its limit was charged with
    limits: bytes = b""  # header lines that tell what is left
    tenant: str = ""  # who shares the room fairly with others
    deadline: float | None = None  # by the same clock as `started`
    queued_s: float = 0.0
    streamed: bool = False
    begun: bool = False  # the client has been sent something
    gone: bool = False  # the client went away
    alone: bool = False  # its instance had nothing else of this router's to do until the first byte
    status: int = 0
    outcome: str = ""
    code: str = ""
    error: str = ""
    first_byte: float | None = None
    last_byte: float | None = None
    e2e_ms: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    usage: Usage | None = None

    @property
    def retries(self) -> int:
        return len(self.attempts) - 1 if self.attempts else 0

    @property
    def instance(self) -> str:
        return self.decision.instance if self.decision is not None else ""

    @property
    def flow(self) -> str:
        """As it was served in the end."""
        return self.offload.flow if self.offload is not None else "colocated"

    def end(self, now: float) -> None:
        """It is over: what can be said of its times, and away with what is large; the receipt is written later."""
        self.e2e_ms = (now - self.started) * 1000
        if self.streamed and self.first_byte is not None:  # the one byte time of a whole answer tells of no first token
            self.ttft_ms = (self.first_byte - self.started) * 1000
            self.tpot_ms = self._tpot_ms(self.first_byte)
        self.blocks = array("Q", self.chunks[BLOCK_CHUNKS - 1 :: BLOCK_CHUNKS]).tobytes()
        self.token_ids = self.prompt.token_ids is not None
        self.body = self.forwarded = b""
        self.chunks = ()
        self.block_hashes, self.exactly = (), {}
        self.prompt = UNREAD

    def _tpot_ms(self, first_byte: float) -> float | None:
        """Per output token after the first; None without `usage` or with fewer than two tokens."""
        tokens = self.usage.output_tokens if self.usage is not None else None
        if not tokens or tokens < 2 or self.last_byte is None:
            return None
        return (self.last_byte - first_byte) * 1000 / (tokens - 1)
