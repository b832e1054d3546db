"""One tier of one engine: its contents, its work in progress and its totals."""

from collections.abc import Sequence

from fleet.engine.tiers.backlog import Backlog
from fleet.engine.tiers.cache import TierCache
from fleet.engine.tiers.devices import BACKLOG_SHARE
from fleet.engine.tiers.loading import lost_to_writes_s, store_s
from fleet.engine.tiers.model import TierModel, TierStats
from fleet.engine.tiers.sizes import KvLayout


class Tier:
    def __init__(self, model: TierModel, layout: KvLayout, block_size: int, pool_blocks: int) -> None:
        self.device = model.device
        self.cache = TierCache(model.capacity_bytes / (layout.bytes_per_token * block_size))
        self.backlog: Backlog | None = None  # None: blocks are written at once
        if model.device.contention == "slack":
            limit = BACKLOG_SHARE * pool_blocks * layout.bytes(block_size)
            self.backlog = Backlog(model.device.write_bytes_per_s, limit)
        self._layout, self._block_size = layout, block_size
        self._writes_until_s = 0.0  # end of the naive writes in progress
        self._capacity_bytes = model.capacity_bytes
        self.hit_tokens = 0
        self.queried_blocks = 0
        self.hit_blocks = 0
        self.read_tokens = 0
        self.written_tokens = 0
        self.loads = 0
        self.stores = 0
        self.load_s = 0.0
        self.write_s = 0.0

    def lacks(self, hashes: Sequence[int]) -> list[int]:
        """Return the positions of the blocks that are neither held nor about to be written."""
        cache, pending = self.cache, self.backlog if self.backlog is not None else ()
        return [at for at, key in enumerate(hashes) if key not in cache and key not in pending]

    def reads(self, start_s: float, io_s: float, tokens: int) -> float:
        """Return the duration of a load that starts at `start_s`; beside naive writes, the load retains only a share of
        its speed.
        """
        if self.device.contention == "naive":
            io_s += lost_to_writes_s(io_s, self._writes_until_s - start_s)
        self.load_s += io_s
        self.read_tokens += tokens
        self.loads += tokens > 0
        return io_s

    def writes(self, blocks: int, now_s: float) -> float:
        """Count a write of the given number of blocks. Return its duration."""
        seconds = store_s(self.device, self._layout, blocks * self._block_size)
        self.written_tokens += blocks * self._block_size
        self.write_s += seconds
        self.stores += 1
        self._writes_until_s = max(self._writes_until_s, now_s) + seconds
        return seconds

    def stats(self) -> TierStats:
        size, per_token = self._block_size, self._layout.bytes_per_token
        return TierStats(
            name=self.device.name,
            capacity_bytes=self._capacity_bytes,
            capacity_tokens=int(self._capacity_bytes / per_token),
            held_tokens=len(self.cache) * size,
            hit_tokens=self.hit_tokens,
            queried_blocks=self.queried_blocks,
            hit_blocks=self.hit_blocks,
            read_bytes=self.read_tokens * per_token,
            written_bytes=self.written_tokens * per_token,
            loads=self.loads,
            stores=self.stores,
            load_s=self.load_s,
            write_s=self.write_s,
            medium=self.device.medium,
            evicted_tokens=self.cache.evicted * size,
            wears=self.device.endurance,
            used_bytes=len(self.cache) * size * per_token,
        )
