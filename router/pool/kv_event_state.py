"""A pool's exact prefix index (from KV events), and the tokenizer that its look-ups need."""

from router.prefix.exact.index import ExactIndex
from router.prefix.outcomes import Outcomes
from router.tokenize.tokenizer import Tokenizer


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
        self.outcomes: dict[str, Outcomes] = {}  # by the index in force
        self.untokenized = 0  # requests that could not be tokenised as their engine does
