"""Prefixes of a trace as chains of block numbers: equal numbers mean equal prompts up to that block. The whole trace
has one block size, its most frequent one: a trace has no information within a block, and with blocks of 512 instead of
16, a prompt of 12,000 tokens has 24 instead of 750.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, islice

from controlplane.evidence.traces.types import TraceRequest
from fleet.engine.engine_model import EngineModel


@dataclass(frozen=True, slots=True)
class TracePrompts:
    """The prompts of a trace. Building them takes a tenth of the time of a simulation, so several simulations may share
    them."""

    block_size: int  # tokens
    chains: Mapping[int, list[int]]  # chain by the index of the request


def prompts_of(requests: Sequence[TraceRequest]) -> TracePrompts:
    sizes = Counter(request.block_tokens for request in requests)
    size = max(sizes, key=lambda each: (sizes[each], each)) if sizes else 1
    ids = {request.index: list(request.block_ids()) for request in requests}
    linked = ids if _is_linked(ids.values()) else _linked(ids)
    return TracePrompts(size, {one.index: linked[one.index][: -(-one.input_tokens // size)] for one in requests})


class TraceChains:
    """The chains of one simulation."""

    def __init__(self, prompts: TracePrompts) -> None:
        self.block_size, self.prompts = prompts.block_size, prompts.chains
        self._fresh = count(-1, -1)  # numbers of blocks that are never shared
        self._scaled: tuple[EngineModel, EngineModel] | None = None  # the latest, because equal instances share a model

    def whole(self, request: TraceRequest) -> list[int]:
        """Return the full blocks of prompt and answer together."""
        size = self.block_size
        chain = self.prompts[request.index][: request.input_tokens // size]
        more = (request.input_tokens + request.output_tokens) // size - len(chain)
        return chain + list(islice(self._fresh, more))

    def scaled(self, model: EngineModel) -> EngineModel:
        """Return the same engine with blocks of that size, for the same number of tokens."""
        if self.block_size == model.limits.block_size:
            return model
        if self._scaled is None or self._scaled[0] is not model:
            blocks, limits = (
                max(model.kv_tokens // self.block_size, 1),
                replace(model.limits, block_size=self.block_size),
            )
            self._scaled = model, replace(model, kv_blocks=blocks, limits=limits)
        return self._scaled[1]


def _is_linked(chains: Iterable[list[int]]) -> bool:
    """Return whether each id always follows the same id, so that it already identifies the prompt up to that block."""
    before: dict[int, int] = {}
    for ids in chains:
        previous = [-1, *ids[:-1]]
        if list(map(before.setdefault, ids, previous)) != previous:
            return False
    return True


def _linked(chains: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Renumber the blocks so that each number identifies the prompt up to that block."""
    numbers: dict[tuple[int, int], int] = {}  # number by (previous block, id)
    return {
        index: list(accumulate(ids, lambda link, one: numbers.setdefault((link, one), len(numbers) + 1), initial=0))[1:]
        for index, ids in chains.items()
    }
