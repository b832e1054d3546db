"""How many lines of a batch are under way: more while the engines have capacity to spare, fewer at once while requests
wait or KV caches are nearly full. Pure."""

from collections.abc import Iterable

from router.contract.redis.sample import InstanceSample

FIRST, MOST = 4, 64  # lines under way
MORE = 2  # each time
KV_USAGE = 0.8  # mean KV usage above which no line is added
STEP_S = 0.5


def allowed(before: int, samples: Iterable[InstanceSample]) -> int:
    found = list(samples)
    usages = [sample.kv_usage for sample in found if sample.kv_usage is not None]
    waits = any(sample.waiting for sample in found)
    if waits or (usages and sum(usages) / len(usages) >= KV_USAGE):
        return max(1, before // 2)
    return min(MOST, before + MORE) if found else before
