"""The tiers below one engine's HBM, event by event: look-up, loads, writes, promotion, prefetch.

load(request)         a request is admitted: choose what it loads from below
lengthen(loads, …)    the step with these loads takes longer
ended(…)              the step, or a run of decode steps, has ended: slack-aware writes had this much time
write(request, now)   blocks of a prompt or an answer are complete
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fleet.engine.blocks import BlockPool, Removed, Stored
from fleet.engine.law import Law
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.backlog import PendingWrite
from fleet.engine.tiers.cache import TierCache
from fleet.engine.tiers.choice import BlockLoads, Run, best_cut, lengthened_s
from fleet.engine.tiers.devices import SLACK_SHARE
from fleet.engine.tiers.loading import load_s
from fleet.engine.tiers.model import TiersModel, TiersStats
from fleet.engine.tiers.sizes import staging_tokens
from fleet.engine.tiers.tier import Tier


@dataclass(slots=True)
class Prefetch:
    """Blocks in transit from a drive to host memory while their request waits."""

    tier: int
    hashes: list[int]
    start_s: float
    io_s: float


class EngineTiers:
    def __init__(self, model: TiersModel, law: Law, pool: BlockPool, block_size: int, chunk: int) -> None:
        self.model = model
        self._law, self._pool, self._size, self._chunk = law, pool, block_size, chunk
        self._tiers = [Tier(tier, model.layout, block_size, pool.total) for tier in model.tiers]
        self._devices = [tier.device for tier in model.tiers]
        self._block_bytes = model.layout.bytes(block_size)
        self._backlogs = [(tier, tier.backlog) for tier in self._tiers if tier.backlog is not None]
        self._staged = [staging_tokens(device, model.layout, model.staging_bytes) for device in self._devices]
        # Capacity for blocks that were used once, for second_use
        self._seen = TierCache(max(tier.cache.capacity for tier in self._tiers))
        self._hits: Counter[int] = Counter()  # hits on blocks below the first tier, until they are promoted
        self._settled_s = 0.0  # time up to which the backlogs have been computed
        self._now_s = 0.0
        self._evicting_s = 0.0  # writes for which the step being planned waits
        self._prefetch_free_s = 0.0
        self._bubble_s = 0.0
        self._wasted_tokens = 0
        self._declined_tokens = 0
        self._failed = 0
        if model.write == "evict":
            pool.evicting = self._evicted

    # Admission

    @property
    def is_full(self) -> bool:
        """Return whether so many bytes wait to be written that nothing is admitted."""
        return any(backlog.is_full for _, backlog in self._backlogs)

    def load(self, request: EngineRequest) -> bool:
        """Choose what a request that has its cached blocks loads from lower tiers, and set `request.load`. Return False
        if it would run out of GPU memory."""
        upto = request.tokens - 1  # at least one token is computed
        hidden_s = self._prefetched(request)
        runs = self._look_up(request.chain, len(request.blocks), upto // self._size)
        if not runs:
            return True
        worth = best_cut(
            runs,
            self.model,
            self._law,
            block_size=self._size,
            before=request.computed,
            upto=request.tokens,
            chunk=self._chunk,
            hidden_s=hidden_s,
        )
        self._declined_tokens += self._size * sum(blocks for _, blocks in runs[worth:])
        request.load = self._load(request, runs[:worth], hidden_s) if worth else None
        if request.load is None:
            return True
        if any(tokens > most for tokens, most in zip(request.load.tokens, self._staged, strict=True)):
            self._failed += 1
            self._unpin(request.load)
            request.load = None
            return False
        return True

    def _look_up(self, chain: Sequence[int], first: int, last: int) -> list[Run]:
        """Look up each block on the fastest tier that holds it, up to the first gap."""
        tiers, found = self._tiers, []
        for key in chain[first:last]:
            for number, tier in enumerate(tiers):
                tier.queried_blocks += 1
                if key in tier.cache:
                    tier.hit_blocks += 1
                    found.append(number)
                    break
            else:
                break
        return [(number, len(list(group))) for number, group in groupby(found)]

    def _load(self, request: EngineRequest, runs: Sequence[Run], hidden_s: Sequence[float]) -> BlockLoads:
        count, at = len(self._tiers), len(request.blocks)
        load = BlockLoads([0] * count, [[] for _ in range(count)], [0.0] * count)
        for number, blocks in runs:
            load.hashes[number] += request.chain[at : at + blocks]
            load.tokens[number] += blocks * self._size
            at += blocks
        for number, tier in enumerate(self._tiers):
            whole_s = load_s(tier.device, self.model.layout, load.tokens[number])
            load.io_s[number] = max(0.0, whole_s - hidden_s[number])
            tier.cache.pin(load.hashes[number])
        return load

    def _unpin(self, load: BlockLoads) -> None:
        for tier, hashes in zip(self._tiers, load.hashes, strict=True):
            tier.cache.unpin(hashes)

    def left(self, request: EngineRequest) -> None:
        """Drop the loads of an aborted request."""
        if request.load is not None:
            self._unpin(request.load)
            request.load = None
        if request.prefetch is not None:
            self._wasted_tokens += len(request.prefetch.hashes) * self._size
            request.prefetch = None

    def started(self, request: EngineRequest, *, again: bool) -> BlockLoads | None:
        """Return the loads of a request that joins the coming step. With `again`, the request was preempted and its
        hits are not counted."""
        load, request.load = request.load, None
        if not again:
            request.written = 0 if self.model.write == "second_use" else request.computed // self._size
            request.tier_tokens = tuple(load.tokens) if load is not None else ()
            for tier, tokens in zip(self._tiers, request.tier_tokens, strict=False):
                tier.hit_tokens += tokens
        return load

    # Steps

    def settle(self, now_s: float) -> None:
        """Let slack-aware writes use the time until now, in which the engine was idle."""
        self._now_s = max(self._now_s, now_s)
        if self._backlogs and now_s > self._settled_s:
            self._drain([now_s - self._settled_s] * len(self._backlogs), now_s)

    def lengthen(self, loads: Sequence[BlockLoads], start_s: float, law_s: float) -> float:
        """Return the duration of a step that would take `law_s` without its loads and evictions."""
        evicting_s, self._evicting_s = self._evicting_s, 0.0
        if not loads:
            self._bubble_s += evicting_s
            return law_s + evicting_s
        io_s = [
            tier.reads(start_s, sum(load.io_s[at] for load in loads), sum(load.tokens[at] for load in loads))
            for at, tier in enumerate(self._tiers)
        ]
        whole_s = lengthened_s(self._devices, io_s, law_s, self.model) + evicting_s
        self._bubble_s += whole_s - law_s
        return whole_s

    def ended(self, loads: Sequence[BlockLoads], law_s: float, end_s: float, *, prefills: bool) -> bool:
        """End a step, or a run of decode steps, that takes `law_s` without its loads. Slack-aware writes had the
        remaining time of a prefill, or a share of decode steps. Return True if a request that was held back may be
        admitted."""
        self._now_s = end_s
        for load in loads:
            self._unpin(load)
            self._promote(load)
        if not self._backlogs:
            return False
        slack = []
        for tier, _ in self._backlogs:
            io_s = sum(load.io_s[self._tiers.index(tier)] for load in loads)
            slack.append(max(0.0, law_s - io_s) if prefills else law_s * SLACK_SHARE)
        return self._drain(slack, end_s)

    def change_s(self, *, idle: bool) -> float | None:
        """Return the seconds after which enough may have been written for a request that is held back."""
        changes = [change for _, backlog in self._backlogs if (change := backlog.change_s()) is not None]
        return min(changes) / (1 if idle else SLACK_SHARE) if changes else None

    def idle_change_at_s(self) -> float | None:
        change_s = self.change_s(idle=True)
        return self._settled_s + change_s if change_s is not None else None

    def flush(self) -> None:
        """Finish all waiting writes."""
        self._drain([float("inf")] * len(self._backlogs), self._settled_s)

    def _drain(self, seconds: Sequence[float], now_s: float) -> bool:
        self._settled_s = now_s
        changed = False
        for (tier, backlog), span_s in zip(self._backlogs, seconds, strict=True):
            was_full = backlog.is_full
            done = backlog.drain(span_s)
            for write in done:
                self._pool.release(write.blocks)
                self._put(self._tiers.index(tier), write.hashes)
            changed = changed or bool(done) or was_full != backlog.is_full
        return changed

    # Writes

    def write(self, request: EngineRequest, now_s: float) -> None:
        """Queue the request's complete blocks, up to `request.stored`, for the lower tiers."""
        self._now_s = now_s
        first, last = request.written, request.stored
        request.written = max(first, last)
        for tier in self._tiers:
            tier.cache.touch(request.chain[:last])
        if self.model.write == "evict" or last <= first:
            return
        hashes, blocks = list(request.chain[first:last]), request.blocks[first:last]
        if self.model.write == "second_use":
            again = [at for at, key in enumerate(hashes) if key in self._seen]
            self._seen.put(hashes)
            self._seen.evict()
            hashes, blocks = [hashes[at] for at in again], [blocks[at] for at in again]
        for number, tier in enumerate(self._tiers):
            missing = tier.lacks(hashes)
            if missing:
                self._store(number, [hashes[at] for at in missing], [blocks[at] for at in missing])

    def _store(self, number: int, hashes: list[int], blocks: list[int]) -> None:
        """Write blocks to a tier. `blocks` are blocks of the pool that must stay until they are written."""
        tier = self._tiers[number]
        tier.writes(len(hashes), self._now_s)
        if tier.backlog is None:
            self._put(number, hashes)
        else:
            self._pool.take(blocks)
            tier.backlog.add(PendingWrite(hashes, blocks, len(hashes) * self._block_bytes))

    def _put(self, number: int, hashes: list[int]) -> None:
        """Add blocks to a tier. If blocks are written only on eviction, those evicted here move down."""
        tier = self._tiers[number]
        fresh = tier.cache.put(hashes)
        gone = tier.cache.evict()
        if fresh:
            self._pool.record(Stored(tuple(fresh), None, 0, None, tier.device.medium))
        if not gone:
            return
        below = number + 1
        if self.model.write == "evict" and below < len(self._tiers):
            missing = [gone[at] for at in self._tiers[below].lacks(gone)]
            if missing:
                self._store(below, missing, [])
        for key in gone:
            self._hits.pop(key, None)
        self._pool.record(Removed(tuple(gone), tier.device.medium))

    def _evicted(self, hashes: list[int]) -> None:
        """Write blocks that HBM is about to reuse; the step waits for the write."""
        missing = [hashes[at] for at in self._tiers[0].lacks(hashes)]
        if missing:
            self._evicting_s += self._tiers[0].writes(len(missing), self._now_s)
            self._put(0, missing)

    def _promote(self, load: BlockLoads) -> None:
        """Copy blocks that were loaded from below the first tier into it, after enough hits."""
        wanted = self.model.promote_hits
        for tier, hashes in zip(self._tiers, load.hashes, strict=True):
            tier.cache.touch(hashes)
        for hashes in load.hashes[1:] if wanted else ():
            if wanted > 1:
                self._hits.update(hashes)
            self._copy_up([key for key in hashes if wanted == 1 or self._hits[key] >= wanted])

    def _copy_up(self, hashes: list[int]) -> None:
        missing = [hashes[at] for at in self._tiers[0].lacks(hashes)]
        if missing:
            self._store(0, missing, [])

    # Prefetch

    def arrived(self, request: EngineRequest, now_s: float) -> None:
        """Begin to read the blocks that the request's prompt needs from the drive into host memory."""
        if not self.model.prefetch or len(self._tiers) < 2:
            return
        chain, held = request.chain, self._pool.held(request.chain)
        below = []
        for key in chain[held : (request.prompt_tokens - 1) // self._size]:
            if key in self._tiers[0].cache:
                continue
            if key not in self._tiers[1].cache:
                break
            below.append(key)
        if below:
            io_s = load_s(self._devices[1], self.model.layout, len(below) * self._size)
            start_s = max(now_s, self._prefetch_free_s)
            self._prefetch_free_s = start_s + io_s
            request.prefetch = Prefetch(1, below, start_s, io_s)

    def _prefetched(self, request: EngineRequest) -> list[float]:
        """Return the seconds of a load that the prefetch has already done, by tier; after a complete prefetch, the
        blocks are in host memory."""
        hidden_s = [0.0] * len(self._tiers)
        fetch, request.prefetch = request.prefetch, None
        if fetch is None:
            return hidden_s
        needed = set(request.chain[len(request.blocks) :])
        wasted = sum(key not in needed for key in fetch.hashes)
        self._wasted_tokens += wasted * self._size
        done_s = min(max(0.0, self._now_s - fetch.start_s), fetch.io_s)
        if done_s < fetch.io_s:
            hidden_s[fetch.tier] = done_s
        else:
            self._tiers[fetch.tier].read_tokens += len(fetch.hashes) * self._size
            self._copy_up(fetch.hashes)
        return hidden_s

    # Statistics

    def held(self, key: int) -> str:
        """Return the medium of the fastest tier that holds this block; empty if none does."""
        return next((tier.device.medium for tier in self._tiers if key in tier.cache), "")

    def backlog_bytes(self, now_s: float, *, idle: bool) -> float:
        return sum(self._backlog_bytes(tier, now_s, idle=idle) for tier in self._tiers)

    def _backlog_bytes(self, tier: Tier, now_s: float, *, idle: bool) -> float:
        """Return the bytes per GPU that wait to be written."""
        span_s = max(0.0, now_s - self._settled_s) * (1 if idle else SLACK_SHARE)
        left = tier.backlog.bytes if tier.backlog is not None else 0.0
        return max(0.0, left - span_s * tier.device.write_bytes_per_s)

    def stats(self, now_s: float, *, idle: bool) -> TiersStats:
        layout = self.model.layout
        waiting = [self._backlog_bytes(tier, now_s, idle=idle) for tier in self._tiers]
        return TiersStats(
            tiers=tuple(
                replace(tier.stats(), backlog_bytes=left * layout.tp)
                for tier, left in zip(self._tiers, waiting, strict=True)
            ),
            bubble_s=self._bubble_s,
            backlog_bytes=sum(waiting),
            backlog_most_bytes=max((backlog.most for _, backlog in self._backlogs), default=0.0),
            wasted_bytes=self._wasted_tokens * layout.bytes_per_token,
            declined_tokens=self._declined_tokens,
            failed=self._failed,
        )
