"""A trace's prefixes as the engines and the router see them: chains of blocks, equal number, equal prompt up to there.

One size of block for the whole trace, its own most frequent one: what is smaller than a block of the trace cannot be
told apart anyway, and a prompt of 12,000 tokens is 24 blocks of 512 instead of 750 of 16.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from controlplane.experiments.traces.types import TraceRequest
from controlplane.experiments.twin.types import EngineModel


class Chains:
    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        sizes = Counter(request.block_tokens for request in requests)
        self.block_size = max(sizes, key=lambda size: (sizes[size], size)) if sizes else 1  # tokens
        self._numbers: dict[tuple[int, int], int] = {}  # (block before, the trace's id) → block
        self._fresh = count(1 << 62)  # of blocks that are nobody else's
        self.prompts = {request.index: self._prompt(request) for request in requests}

    def whole(self, request: TraceRequest) -> list[int]:
        """The full blocks of prompt and answer together, as the engine knows them."""
        full = request.input_tokens // self.block_size
        chain = self.prompts[request.index][:full]
        more = (request.input_tokens + request.output_tokens) // self.block_size - len(chain)
        chain += [next(self._fresh) for _ in range(more)]
        return chain

    def _prompt(self, request: TraceRequest) -> list[int]:
        """Its blocks, also the last one where that is cut: equal prompts are equal to their ends."""
        numbers, link, chain = self._numbers, 0, []
        for block in request.block_ids():
            key = link, block
            link = numbers.get(key) or numbers.setdefault(key, len(numbers) + 1)
            chain.append(link)
        return chain[: -(-request.input_tokens // self.block_size)]

    def scaled(self, model: EngineModel) -> EngineModel:
        """The same engine with blocks of that size, and as many as have room for the same tokens."""
        blocks = max(model.kv_tokens // self.block_size, 1)
        return replace(model, kv_blocks=blocks, limits=replace(model.limits, block_size=self.block_size))
