"""What the router takes each instance to hold of a prompt, by its own prefix index fed with the trace's blocks."""

from collections.abc import Mapping, Sequence

from controlplane.experiments.twin.types import EngineModel
from router.prefix.approximate import PrefixIndex

LIFE = 1  # of an engine: none of them starts again


class Guesses:
    """Of instances that do not tell: what was sent there, as much as their KV has room for, corrected by answers."""

    def __init__(self, models: Mapping[str, EngineModel], block_size: int) -> None:
        """`models` as they are; `block_size`: of the chains, tokens."""
        self._index = PrefixIndex()
        self._block_size = block_size
        self._rounded_to = {name: model.limits.block_size for name, model in models.items()}
        for name, model in models.items():
            self._index.limit(name, max(model.kv_tokens // block_size, 1))

    def held(self, chain: Sequence[int], prompt_tokens: int) -> dict[str, int]:
        """Tokens by instance; those that hold nothing are left out."""
        size, rounded_to = self._block_size, self._rounded_to
        found = {}
        for name, blocks in self._index.match(chain).items():
            tokens = min(blocks * size, prompt_tokens)
            found[name] = tokens - tokens % rounded_to[name]
        return found

    def sent(self, instance: str, chain: Sequence[int]) -> None:
        self._index.insert(instance, LIFE, chain)

    def answered(self, instance: str, chain: Sequence[int], prompt_tokens: int, cached_tokens: int) -> None:
        """The engine says how much of the prompt it had."""
        size = self._block_size
        # At least one token is computed, and what is cut of the last block cannot be hit: no sign of an eviction.
        all_there = cached_tokens >= (prompt_tokens - 1) // size * size
        self._index.correct(instance, chain, len(chain) if all_there else cached_tokens // size)
