"""The displayed status of an instance: its state, corrected by its latest sample. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from fleet.counted import percent
from router.contract.redis.published import PolicyValue
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import SAMPLE_OFFLINE_S, SAMPLE_STALE_S
from router.contract.values.fields import accept
from router.contract.values.problem import Problem
from router.policy.schema.document import upgrade_if_known
from router.policy.schema.parameters import PARAMETERS

KV_USAGE_MAX = PARAMETERS["load.kv_usage_max"]
WAITING_SATURATED = 16  # waiting requests of one engine

# Statuses, worst first; totals are listed in this order.
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
BROKEN = ("failed", "unreachable", "offline", "stale")  # statuses listed first wherever instances are listed
UNHEARD = ("offline", "stale", "unseen")  # statuses without a recent sample
SERVING = ("ready", "draining")  # states in which a sample is expected every second


def kv_limit(live: PolicyValue | None) -> float:
    """Return the KV usage (0–1) above which the pool's policy counts an instance as overloaded; by default, the limit
    of a new policy."""
    load = {} if live is None else upgrade_if_known(live.document).get("load")
    limit = load.get("kv_usage_max") if isinstance(load, dict) else None
    read = KV_USAGE_MAX.default if limit is None else accept(KV_USAGE_MAX, limit)
    return float(KV_USAGE_MAX.default if isinstance(read, Problem) else read)


class ShownStatus(NamedTuple):
    status: str
    reason: str
    last_known: bool = False  # True if nothing newer has arrived, which does not reveal the engine's state


def shown_status(
    state: str, sample: InstanceSample | None, now: float, kv_limit: float, heard_at: float | None = None
) -> ShownStatus:
    """Return the status. `sample` is None without one or after it expired. `heard_at` is the time of its node's
    newest sample; an instance whose node has not reported at all keeps its last known status."""
    if state not in SERVING:
        return ShownStatus(state, "")
    if sample is None:
        return ShownStatus("unseen", "no sample yet")
    age = now - sample.at
    if age < -SAMPLE_STALE_S:
        ahead = f"its sample is {-age:.0f} s in the future: check the clocks of its node and of this host"
        return ShownStatus("stale", ahead)
    last_known = age > SAMPLE_STALE_S and now - max(sample.at, heard_at or 0.0) > SAMPLE_STALE_S
    status = _of_sample(state, sample, 0.0 if last_known else age, kv_limit)
    why = measured(status, age, sample.kv_usage, sample.waiting, kv_limit, last_known=last_known)
    return ShownStatus(status, why, last_known)


def heard(places: Iterable[tuple[str, InstanceSample | None]], now: float) -> dict[str, float]:
    """Return when each node last reported: the time of its newest sample. `places` has (node, sample) of each
    instance."""
    times: dict[str, float] = {}
    for node, sample in places:
        if sample is not None and sample.at - now <= SAMPLE_STALE_S:
            times[node] = max(sample.at, times.get(node, 0.0))
    return times


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


def measured(
    status: str,
    age_s: float | None,
    kv: float | None,
    waiting: float | None,
    kv_limit: float,
    *,
    last_known: bool = False,
) -> str:
    """Return the reason for a status that follows from a sample; empty for other statuses."""
    if last_known:
        return f"last known {age_s or 0:.0f} s ago: no sample of its node has arrived since"
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
