"""What a pool's engines tell of their caches, and how prompts become the tokens that they speak of."""

from router.prefix.exact.index import ExactIndex
from router.prefix.outcomes import Outcomes
from router.tokenize.tokenizer import Tokenizer


class KvEventState:
    """Of one pool. Nothing is in it, and a request pays nothing for it, until an engine publishes KV events."""

    __slots__ = (
        "believed_of_all",
        "index",
        "last_untokenized",
        "no_tokens",
        "outcomes",
        "reader",
        "reader_at",
        "reader_name",
        "sizes",
        "untokenized",
    )

    def __init__(self) -> None:
        self.index: ExactIndex | None = None
        self.reader: Tokenizer | None = None
        self.reader_name = ""  # as the fleet has it: a folder, or "sim"
        self.reader_at = 0.0  # s, monotonic: when it was last loaded, or tried to
        self.no_tokens = "its tokenizer has not been looked at yet"  # why prompts cannot be tokenised; "" when they can
        self.sizes: tuple[int, ...] = ()  # tokens in a block, of the instances: one size as a rule
        self.believed_of_all = False  # no other index is needed
        self.outcomes: dict[str, Outcomes] = {}  # by the index that was believed
        self.untokenized = 0  # requests that could not be tokenised as their engine does
        self.last_untokenized = ""  # why
