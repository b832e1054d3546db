"""What the router knows of a prompt before an engine has answered: its tokens, and where its prefix is cached."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from router.prefix.exact.stretches import Tokens
from router.prefix.forecast.cache_forecast import Sent


@dataclass(slots=True)
class Prediction:
    """Written by predict.py, the first estimate of `prompt_tokens` by serving/prepare.py."""

    prompt_tokens: int = 0  # L
    block_hashes: tuple[tuple[int, list[int]], ...] = ()  # (tokens in a block, hashes) where engines publish KV events
    exactly: Mapping[str, Tokens] = field(default_factory=dict)  # by instance, by the exact index
    under_way: Sent | None = None  # on the instance that computes it
    # Cached tokens on the instance that was chosen
    exact_tokens: int | None = None  # None when the exact index was not asked
    tiers: Tokens | None = None  # of the exact index, when it is in force and some of them are below the device
    approximate_tokens: int = 0
    index: str = "none"  # the index in force: exact, approximate or none

    def end(self) -> None:
        self.block_hashes, self.exactly = (), {}
