"""The displayed status of an instance: its state, corrected by its last sample. Pure."""

from fleet.counted import percent
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import SAMPLE_OFFLINE_S, SAMPLE_STALE_S

KV_SATURATED = 0.9  # share of KV blocks in use
WAITING_SATURATED = 16  # waiting requests of one engine

# Every status, worst first; totals are listed in this order.
ORDER = (
    "failed",
    "unreachable",
    "offline",
    "stale",
    "saturated",
    "unseen",
    "starting",
    "loading",
    "draining",
    "stopping",
    "stopped",
    "ready",
)
SERVING = ("ready", "draining")  # states in which a sample is expected every second


def shown_status(state: str, sample: InstanceSample | None, now: float) -> tuple[str, str]:
    """(status, reason). `sample` is None without one or after it expired."""
    if state not in SERVING:
        return state, ""
    if sample is None:
        return "unseen", "no sample yet"
    age = now - sample.at
    if age < -SAMPLE_STALE_S:
        return "stale", f"its sample is {-age:.0f} s in the future: check the clocks of its node and of this host"
    if age > SAMPLE_OFFLINE_S:
        return "offline", f"no sample for {age:.0f} s"
    if age > SAMPLE_STALE_S:
        return "stale", f"last sample {age:.0f} s ago"
    if state == "ready":
        return _load(sample)
    return state, ""


def _load(sample: InstanceSample) -> tuple[str, str]:
    kv, waiting = sample.kv_usage, sample.waiting
    if kv is not None and kv >= KV_SATURATED:
        return "saturated", f"KV usage {percent(kv)} (threshold {percent(KV_SATURATED)})"
    if waiting is not None and waiting >= WAITING_SATURATED:
        return "saturated", f"{waiting:.0f} requests waiting (threshold {WAITING_SATURATED})"
    return "ready", ""
