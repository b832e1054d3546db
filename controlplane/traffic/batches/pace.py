"""Limits the lines of all batches in flight, by requested model: more while the engines of its pools have capacity to
spare, fewer once a queue stands there or KV caches are nearly full. Pure."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router.contract.redis.sample import InstanceSample

FIRST, MOST = 4, 64  # lines in flight
MORE = 2  # lines added at a time, after the first queue
KV_USAGE = 0.8  # mean KV usage above which no line is added
# A request that comes while a step is computed waits for its end, also in an idle engine. Beside other traffic each
# such moment narrows the limit. Without it, the least of several samples tells a standing queue (CoDel, RFC 8289).
LEAST_OF = 3  # samples
SHORT = 1  # waiting requests per engine that are no queue
SURGE = 8  # waiting requests that count in a single sample, if no fewer than run


@dataclass(frozen=True, slots=True)
class EngineReports:
    """The latest reports of engines by pool, and the pools that may serve each name of a model."""

    samples: Mapping[str, Sequence[InstanceSample]] = field(default_factory=dict)
    pools: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, model: str) -> list[InstanceSample]:
        """Return the samples of the pools that serve the name; of every pool for an unknown name, as of an adapter."""
        pools = self.pools.get(model, self.samples.keys())
        return [sample for pool in sorted(pools) for sample in self.samples.get(pool, ())]


@dataclass(slots=True)
class Pace:
    """The lines in flight that one model's engines take."""

    most: int = FIRST
    _is_starting: bool = True  # no queue so far: the limit is doubled
    _read_at: dict[str, float] = field(default_factory=dict)  # engine → time of its latest sample read
    _waiting: dict[str, deque[float]] = field(default_factory=dict)  # engine → its latest numbers of waiting requests

    def step(self, samples: Iterable[InstanceSample], lines: int) -> None:
        """Widen or narrow the limit by the samples that are new. Each counts once.

        `lines`: the most that were in flight since the last step; what the engines have beyond them is other traffic.
        """
        present = list(samples)
        new = [sample for sample in present if sample.at > self._read_at.get(sample.id, float("-inf"))]
        self._note(new, {sample.id for sample in present})
        if not new:
            return
        has_others = sum((sample.running or 0.0) + (sample.waiting or 0.0) for sample in present) > lines
        if any(sample.waiting if has_others else self._has_queue(sample) for sample in new) or _is_full(new):
            self.most, self._is_starting = max(1, self.most // 2), False
            self._waiting.clear()  # What comes from the wider limit tells nothing of the narrower one.
        else:
            self.most = min(MOST, 2 * self.most if self._is_starting else self.most + MORE)

    def _note(self, new: Iterable[InstanceSample], present: Collection[str]) -> None:
        for sample in new:
            self._read_at[sample.id] = sample.at
            self._waiting.setdefault(sample.id, deque(maxlen=LEAST_OF)).append(sample.waiting or 0.0)
        for kept in (self._read_at, self._waiting):
            for engine in kept.keys() - present:
                del kept[engine]

    def _has_queue(self, sample: InstanceSample) -> bool:
        waiting, latest = self._waiting[sample.id], sample.waiting or 0.0
        stands = len(waiting) == LEAST_OF and min(waiting) > SHORT
        return stands or latest >= max(SURGE, sample.running or 0.0)


def _is_full(samples: Iterable[InstanceSample]) -> bool:
    usages = [sample.kv_usage for sample in samples if sample.kv_usage is not None]
    return bool(usages) and sum(usages) / len(usages) >= KV_USAGE
