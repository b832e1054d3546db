"""A store that engines share, like Mooncake's. Every computed prompt is stored there; a request waits outside the batch
while missing parts of its prompt are pulled from the store. The twin simulates it; the `sim` kind runs it as a
process."""

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.engine.engine_model import TransferLink
from fleet.engine.tiers.cache import TierCache
from fleet.engine.tiers.devices import REMOTE
from fleet.engine.tiers.model import TierStats


@dataclass(frozen=True, slots=True)
class StoreModel:
    capacity_bytes: float
    link: TransferLink
    bytes_per_token: float


class SharedStore:
    def __init__(self, model: StoreModel, block_size: int) -> None:
        self._model = model
        self._size = block_size
        self._cache = TierCache(model.capacity_bytes / (model.bytes_per_token * block_size))
        self._transfers = 0  # transfers in progress
        self._reads = self._writes = 0
        self._read_tokens = self._written_blocks = 0
        self._queried = self._hits = 0  # numbers of blocks
        self._load_s = 0.0

    def look_up(self, chain: Sequence[int], first: int, last: int) -> int:
        """Count and return the consecutive blocks, from `first` up to `last`, that the store holds."""
        found = self.held(chain, first, last)
        self._queried += min(found + 1, max(last - first, 0))
        self._hits += found
        return found

    def held(self, chain: Sequence[int], first: int, last: int) -> int:
        return self._cache.held(chain[first:last])

    def put(self, chain: Sequence[int]) -> None:
        fresh = len(self._cache.put(chain))
        self._cache.evict()
        self._written_blocks += fresh
        self._writes += fresh > 0

    def bytes(self, tokens: int) -> int:
        return round(tokens * self._model.bytes_per_token)

    def begin(self, tokens: int) -> float:
        """Begin a transfer from the store; return its duration, which the transfers in progress lengthen."""
        self._transfers += 1
        seconds = self._model.link.seconds(self.bytes(tokens), self._transfers, busy=False)
        self._reads += 1
        self._read_tokens += tokens
        self._load_s += seconds
        return seconds

    def end(self) -> None:
        self._transfers -= 1

    def stats(self) -> TierStats:
        per_token, size = self._model.bytes_per_token, self._size
        written = self._written_blocks * size * per_token
        return TierStats(
            name=REMOTE.name,
            capacity_bytes=self._model.capacity_bytes,
            capacity_tokens=int(self._model.capacity_bytes / per_token),
            held_tokens=len(self._cache) * size,
            hit_tokens=self._read_tokens,
            queried_blocks=self._queried,
            hit_blocks=self._hits,
            read_bytes=self._read_tokens * per_token,
            written_bytes=written,
            loads=self._reads,
            stores=self._writes,
            load_s=self._load_s,
            write_s=written / self._model.link.idle_bytes_per_s,
            medium=REMOTE.medium,
            evicted_tokens=self._cache.evicted * size,
            wears=False,
            used_bytes=len(self._cache) * size * per_token,
        )
