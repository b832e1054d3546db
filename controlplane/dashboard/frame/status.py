"""The displayed status of an instance: its state, corrected by its last sample. Pure."""

from fleet.counted import percent
from router.contract.fields import accept
from router.contract.problem import Problem
from router.contract.redis.published import PolicyValue
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import SAMPLE_OFFLINE_S, SAMPLE_STALE_S
from router.policy.schema.document import upgrade_if_known
from router.policy.schema.parameters import PARAMETERS

KV_USAGE_MAX = PARAMETERS["load.kv_usage_max"]
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
    "drained",
    "stopping",
    "stopped",
    "ready",
)
BROKEN = ("failed", "unreachable", "offline", "stale")  # listed first wherever instances are listed
SERVING = ("ready", "draining")  # states in which a sample is expected every second


def kv_limit(live: PolicyValue | None) -> float:
    """KV usage (0–1) above which an instance is overloaded by its pool's policy; of a new policy where it says none."""
    load = {} if live is None else upgrade_if_known(live.document).get("load")
    limit = load.get("kv_usage_max") if isinstance(load, dict) else None
    read = KV_USAGE_MAX.default if limit is None else accept(KV_USAGE_MAX, limit)
    return float(KV_USAGE_MAX.default if isinstance(read, Problem) else read)


def shown_status(state: str, sample: InstanceSample | None, now: float, kv_limit: float) -> tuple[str, str]:
    """(status, reason). `sample` is None without one or after it expired."""
    if state not in SERVING:
        return state, ""
    if sample is None:
        return "unseen", "no sample yet"
    age = now - sample.at
    if age < -SAMPLE_STALE_S:
        return "stale", f"its sample is {-age:.0f} s in the future: check the clocks of its node and of this host"
    status = _of_sample(state, sample, age, kv_limit)
    return status, measured(status, age, sample.kv_usage, sample.waiting, kv_limit)


def _of_sample(state: str, sample: InstanceSample, age: float, kv_limit: float) -> str:
    if age > SAMPLE_OFFLINE_S:
        return "offline"
    if age > SAMPLE_STALE_S:
        return "stale"
    if state == "ready":
        return "saturated" if _is_full(sample.kv_usage, kv_limit) or _is_queueing(sample.waiting) else "ready"
    return "drained" if sample.running == 0 and sample.waiting == 0 else state


def _is_full(kv: float | None, kv_limit: float) -> bool:
    return kv is not None and kv > kv_limit


def _is_queueing(waiting: float | None) -> bool:
    return waiting is not None and waiting >= WAITING_SATURATED


def measured(status: str, age_s: float | None, kv: float | None, waiting: float | None, kv_limit: float) -> str:
    """Why an instance has a status that its sample gives; empty for other statuses."""
    if status == "unseen":
        return "no sample yet"
    if status == "offline":
        return f"no sample for {age_s or 0:.0f} s"
    if status == "stale":
        return f"last sample {age_s or 0:.0f} s ago"
    if status != "saturated":
        return ""
    if _is_queueing(waiting) and not _is_full(kv, kv_limit):
        return f"{waiting:.0f} requests waiting (threshold {WAITING_SATURATED})"
    return f"KV usage {percent(kv)} (limit of the policy {percent(kv_limit)})"
