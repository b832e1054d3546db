"""A pool's exact prefix index (from KV events), and the tokenizer that its look-ups need."""

from dataclasses import dataclass, field

from router.contract.metrics_page import Histogram
from router.prefix.exact.index import ExactIndex
from router.tokenize.tokenizer import Tokenizer

ERROR_BOUNDS = (0, 16, 64, 256, 1_024, 4_096, 16_384, 65_536)  # tokens


@dataclass(slots=True)
class Outcomes:
    """Predicted against actual cached tokens of all requests since the start, for one index in force."""

    predicted: int = 0
    actual: int = 0
    error: Histogram = field(default_factory=lambda: Histogram(ERROR_BOUNDS))  # of |predicted − actual|

    def add(self, predicted: int, actual: int) -> None:
        self.predicted += predicted
        self.actual += actual
        self.error.observe(abs(predicted - actual))


class KvEventState:
    """Empty, and free of cost for requests, until an engine publishes KV events."""

    def __init__(self) -> None:
        self.index: ExactIndex | None = None
        self.reader: Tokenizer | None = None
        self.reader_name = ""  # as the fleet has it: a folder, or "sim"
        self.reader_at = 0.0  # s, monotonic: the last attempt to load it
        self.no_tokens = "its tokenizer has not been loaded yet"  # why prompts cannot be tokenised; "" when they can
        self.sizes: tuple[int, ...] = ()  # tokens per block, of all instances: usually one size
        self.believed_of_all = False  # of every instance: the approximate index is not asked
        self.some_unknown = False  # no index is in force for some instance
        self.outcomes: dict[str, Outcomes] = {}  # by the index in force
        self.untokenized = 0  # requests that could not be tokenised as their engine does
