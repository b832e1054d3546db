"""Limits the lines of all batches in flight, by requested model: more while the engines of its pools have capacity to
spare, fewer at once while requests wait there or KV caches are nearly full. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router.contract.redis.sample import InstanceSample

FIRST, MOST = 4, 64  # lines in flight
MORE = 2  # lines added at a time
KV_USAGE = 0.8  # mean KV usage above which no line is added
STEP_S = 0.5


@dataclass(frozen=True, slots=True)
class EngineReports:
    """The latest reports of engines by pool, and the pools that may serve each name of a model."""

    samples: Mapping[str, Sequence[InstanceSample]] = field(default_factory=dict)
    pools: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, model: str) -> list[InstanceSample]:
        """Return the samples of the pools that serve the name; of every pool for an unknown name, as of an adapter."""
        pools = self.pools.get(model, self.samples.keys())
        return [sample for pool in sorted(pools) for sample in self.samples.get(pool, ())]


def allowed(before: int, samples: Iterable[InstanceSample]) -> int:
    found = list(samples)
    usages = [sample.kv_usage for sample in found if sample.kv_usage is not None]
    waits = any(sample.waiting for sample in found)
    if waits or (usages and sum(usages) / len(usages) >= KV_USAGE):
        return max(1, before // 2)
    return min(MOST, before + MORE) if found else before
