"""A pool's exact prefix index (from KV events), and the tokenizer for look-ups in it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.contract.metrics.metrics_page import Histogram
from router.prefix.accuracy_by_kind import AccuracyByKind
from router.prefix.belief import Index, Reason
from router.prefix.blocks import TOKEN_BYTES
from router.prefix.chain import PromptChains
from router.prefix.exact.groups import PartsBySize
from router.prefix.exact.index import ExactIndex
from router.prefix.exact.stretches import Tokens
from router.tokenize.tokenizer import Tokenizer

BLOCK_SPANS = 16_384  # for 32 million tokens; a span takes about 1.2 KB with blocks of 16 tokens
MOST_PASSED = 64  # suspicions of other instances that pass while one is asked by which rule it speculates
ERROR_BOUNDS = (0, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)  # tokens, up to the longest prompts


@dataclass(slots=True)
class Outcomes:
    """Predicted and actual cached tokens of all requests since the start, for one index in use."""

    predicted: int = 0
    actual: int = 0
    error: Histogram = field(default_factory=lambda: Histogram(ERROR_BOUNDS))  # distribution of |predicted − actual|

    def add(self, predicted: int, actual: int) -> None:
        self.predicted += predicted
        self.actual += actual
        self.error.observe(abs(predicted - actual))


class EventFeed(Protocol):
    """The source of an endpoint's KV events: this router (router/kv_events/feed.py) or an index process."""

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
    @property
    def names_layers(self) -> bool: ...
    @property
    def unit(self) -> int: ...
    @property
    def ahead(self) -> int: ...
    @property
    def parts(self) -> tuple[int, ...]: ...

    complete: bool
    event_at: float | None
    confirmed_at: float | None
    purges: int
    refused: Counter[str]


class UnderWay(Protocol):
    """A request in flight whose prompt an index expects on an instance."""

    by_rule: Sequence[int]

    def over(self, now: float) -> None: ...


class LookedUp(Protocol):
    """The answer of an index process to a look-up."""

    held: Mapping[str, Tokens]

    def sent(self, instance: str, block_size: int, foreseen: int, *, speculating: bool = False) -> UnderWay | None: ...

    def refuted(self, instance: str, block_size: int, held: int) -> None: ...


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

    async def look_up(
        self, prompts: Sequence[tuple[int, Sequence[int]]], parts: PartsBySize, rules: Mapping[str, int]
    ) -> LookedUp | None: ...


class IndexLink(Protocol):
    """The connection to one index process (router/kv_events/link.py)."""

    path: str
    answered: int  # number of answered look-ups
    late: int
    lost: int
    seconds: Histogram  # duration of the answered look-ups
    resident_bytes: int  # memory of the process; 0 while unknown
    cpu_s: float

    @property
    def trouble(self) -> str: ...


class KvEventState:
    """The pool's KV event state. It is empty, and costs nothing, until an engine publishes KV events."""

    def __init__(self) -> None:
        self.index: ExactIndex | None = None  # index kept by this router
        self.shared: SharedIndex | None = None  # index kept by index processes, used instead of `index`
        self.reader: Tokenizer | None = None
        self.reader_name = ""  # tokenizer named by the fleet: a folder, or "sim"
        self.reader_at = 0.0  # s, monotonic; when the router last loaded the tokenizer, or tried to
        self.no_tokens = "its tokenizer has not been loaded yet"  # why prompts cannot be tokenised; "" if they can
        self.chains: dict[int, PromptChains] = {}  # block chains of prompts, by tokens per block
        self.sizes: tuple[int, ...] = ()  # tokens per block over all instances, usually one size
        self.ahead = 0  # tokens after a block that its hash covers, as on most instances
        # Block sizes, in tokens, of windows whose blocks are parts of their engines' blocks
        self.parts: tuple[int, ...] = ()
        # By kind of request and instance, the rule by which engines with several groups of layers speculate
        self.rules: Mapping[str, Mapping[str, int]] = {}
        self._asked: AccuracyByKind | None = None  # accuracy record of the instance last asked for its rule
        self._passed = 0  # suspicions of other instances since then
        # By kind of request ("": others) and instance: (tokens by which its hits are shorter than its blocks, tokens of
        # a chunk below the device)
        self.reach: Mapping[str, Mapping[str, tuple[int, int]]] = {}
        # True if the exact index knows every instance, so that the approximate one is not needed
        self.believed_of_all = False
        self.some_unknown = False  # True if an instance has no index in use
        self.outcomes: dict[str, Outcomes] = {}  # by the index in use
        self.untokenized = 0  # requests whose prompt could not be tokenized like the engine's
        # Attempts by (index, reason); not a Counter, because adding to one takes twice as long
        self.in_force: defaultdict[tuple[Index, Reason], int] = defaultdict(int)

    def hashes(self, tokens: bytes, block_size: int, seed: int) -> Sequence[int]:
        """Hash the whole blocks; the common beginning of a session's prompts is hashed only once."""
        chains = self.chains.get(block_size)
        if chains is None:
            chains = self.chains[block_size] = PromptChains(BLOCK_SPANS, block_size * TOKEN_BYTES)
        return chains.hashes(tokens, seed)

    def suspect(self, kind: str, by_kind: AccuracyByKind) -> None:
        """Ask for the rule by which an instance speculates. Until the kind has a rule, one instance is asked at a time,
        because a rule learned from one is a hint for the others."""
        asked = self._asked
        if asked is not None and asked is not by_kind and asked.asks and not self.rules.get(kind):
            self._passed += 1
            if self._passed < MOST_PASSED:
                return
        by_kind.suspect()
        self._asked, self._passed = by_kind, 0

    def learnt(self, kind: str, instance: str, rule: int) -> None:
        """Note the rule by which the instance speculates."""
        self.rules = {**self.rules, kind: {**self.rules.get(kind, {}), instance: rule}}

    @property
    def attention_chunk(self) -> int:
        """Return the tokens per chunk of the model's attention if its tokenizer's folder states them, 0 otherwise."""
        return self.reader.attention_chunk if self.reader is not None else 0

    @property
    def forgetful(self) -> bool:
        """Return whether layers of the model keep only part of the tokens, according to its tokenizer's folder."""
        return self.reader is not None and self.reader.forgetful

    @property
    def known(self) -> ExactIndex | SharedIndex | None:
        """Return the exact index, in this process or in an index process."""
        return self.index if self.shared is None else self.shared
