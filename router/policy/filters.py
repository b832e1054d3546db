"""Which instances may take a request at all. A filter says why not, in words; empty means yes."""

from collections.abc import Callable, Sequence

from router.policy.types import Instance, Policy

Filter = Callable[[Instance, Policy], str]


def refused(instance: Instance, policy: Policy) -> str:
    return instance.refused


def in_flight(instance: Instance, policy: Policy) -> str:
    limit = policy["admission.max_inflight_per_instance"]
    return f"{instance.running} requests, its limit is {limit}" if instance.running >= limit else ""


def kv_headroom(instance: Instance, policy: Policy) -> str:
    limit = policy["load.kv_usage_max"]
    return f"KV usage {instance.kv_usage:.1%} is above {limit:.1%}" if instance.kv_usage > limit else ""


HARD: dict[str, Filter] = {"refused": refused, "in_flight": in_flight}
# Set aside only while another has room: a full KV cache makes requests wait, it does not make the engine refuse them.
SOFT: dict[str, Filter] = {"kv_headroom": kv_headroom}


def refusals(instances: Sequence[Instance], policy: Policy) -> list[str]:
    """For each instance why it may not take the request, empty when it may."""
    limit = policy["admission.max_inflight_per_instance"]
    kv_limit = policy["load.kv_usage_max"]
    # One pass tells a fleet that is well, as it nearly always is, and asks no filter.
    if not any(i.refused or i.running >= limit or i.kv_usage > kv_limit for i in instances):
        return [""] * len(instances)
    hard = [_first(HARD, instance, policy) for instance in instances]
    soft = [why or _first(SOFT, instance, policy) for why, instance in zip(hard, instances, strict=True)]
    return hard if all(soft) else soft


def _first(filters: dict[str, Filter], instance: Instance, policy: Policy) -> str:
    return next((why for rule in filters.values() if (why := rule(instance, policy))), "")
