"""A pool's exact prefix index (from KV events), and the tokenizer that its look-ups need."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.contract.metrics.metrics_page import Histogram
from router.prefix.belief import Index, Reason
from router.prefix.blocks import TOKEN_BYTES
from router.prefix.chain import PromptChains
from router.prefix.exact.index import ExactIndex
from router.prefix.exact.stretches import Tokens
from router.tokenize.tokenizer import Tokenizer

BLOCK_SPANS = 16_384  # about 1.2 KB each with blocks of 16 tokens: of 32 million tokens
ERROR_BOUNDS = (0, 16, 64, 256, 1_024, 4_096, 16_384, 65_536)  # tokens


@dataclass(slots=True)
class Outcomes:
    """Predicted against actual cached tokens of all requests since the start, for one index in force."""

    predicted: int = 0
    actual: int = 0
    error: Histogram = field(default_factory=lambda: Histogram(ERROR_BOUNDS))  # distribution of |predicted − actual|

    def add(self, predicted: int, actual: int) -> None:
        self.predicted += predicted
        self.actual += actual
        self.error.observe(abs(predicted - actual))


class EventFeed(Protocol):
    """How an endpoint's KV events are followed: by this router (router/kv_events/feed.py), or by an index process."""

    @property
    def trouble(self) -> str: ...
    @property
    def gaps(self) -> int: ...
    @property
    def replayed(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def but_for(self) -> str: ...

    complete: bool
    event_at: float | None
    confirmed_at: float | None
    purges: int
    refused: Counter[str]


class UnderWay(Protocol):
    """A request in flight whose prompt an index expects on an instance."""

    def over(self, now: float) -> None: ...


class LookedUp(Protocol):
    """The answer of an index process to a look-up."""

    held: Mapping[str, Tokens]

    def sent(self, instance: str, block_size: int, foreseen: int) -> UnderWay | None: ...


class SharedIndex(Protocol):
    """The pool's exact index in index processes (router/kv_events/shared.py)."""

    @property
    def seed(self) -> int: ...
    @property
    def answers(self) -> bool: ...
    @property
    def has_lower(self) -> bool: ...
    @property
    def bytes(self) -> int: ...

    def blocks(self, instance: str) -> Tokens: ...

    async def look_up(self, prompts: Sequence[tuple[int, Sequence[int]]]) -> LookedUp | None: ...


class IndexLink(Protocol):
    """The connection to one index process (router/kv_events/link.py)."""

    path: str
    answered: int  # look-ups
    late: int
    lost: int
    seconds: Histogram  # duration of the answered look-ups
    resident_bytes: int  # memory of the process; 0 when unknown
    cpu_s: float

    @property
    def trouble(self) -> str: ...


class KvEventState:
    """Empty until an engine publishes KV events; until then it costs requests nothing."""

    def __init__(self) -> None:
        self.index: ExactIndex | None = None  # index that this router keeps
        self.shared: SharedIndex | None = None  # instead, if it was given index processes
        self.reader: Tokenizer | None = None
        self.reader_name = ""  # as the fleet has it: a folder, or "sim"
        self.reader_at = 0.0  # s, monotonic: the last attempt to load it
        self.no_tokens = "its tokenizer has not been loaded yet"  # why prompts cannot be tokenised; "" when they can
        self.chains: dict[int, PromptChains] = {}  # chains of prompts' blocks, by tokens in a block
        self.sizes: tuple[int, ...] = ()  # tokens per block, of all instances: usually one size
        self.shortfalls: Mapping[str, int] = {}  # tokens by instance whose hits are shorter than its blocks allow
        self.believed_of_all = False  # the exact index knows every instance: the approximate one is not asked
        self.some_unknown = False  # no index is in force for some instance
        self.outcomes: dict[str, Outcomes] = {}  # by the index in force
        self.untokenized = 0  # requests that could not be tokenised as their engine does
        # Attempts, by the index that predicted and why; an addition to a Counter takes twice as long
        self.in_force: defaultdict[tuple[Index, Reason], int] = defaultdict(int)

    def hashes(self, tokens: bytes, block_size: int, seed: int) -> Sequence[int]:
        """The hashes of the whole blocks; the shared beginning of a session's prompts is hashed only once."""
        chains = self.chains.get(block_size)
        if chains is None:
            chains = self.chains[block_size] = PromptChains(BLOCK_SPANS, block_size * TOKEN_BYTES)
        return chains.hashes(tokens, seed)

    @property
    def attention_chunk(self) -> int:
        """Tokens in a chunk of the model's attention, where its tokenizer's folder tells it; otherwise 0."""
        return self.reader.attention_chunk if self.reader is not None else 0

    @property
    def known(self) -> ExactIndex | SharedIndex | None:
        """The exact index, in this process or in an index process."""
        return self.index if self.shared is None else self.shared
