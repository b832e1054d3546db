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


def refusals(instances: Sequence[Instance], policy: Policy) -> dict[int, str]:
    """Why instances may not take the request, by their place in the list; those that may are not in it."""
    limit, kv_limit = policy["admission.max_inflight_per_instance"], policy["load.kv_usage_max"]
    # One cheap pass finds whom the filters have to be asked about: in a fleet that is well, nobody.
    doubtful = [
        place
        for place, instance in enumerate(instances)
        if instance.refused or instance.running >= limit or instance.kv_usage > kv_limit
    ]
    if not doubtful:
        return {}
    hard = _rejected(HARD, instances, doubtful, policy)
    both = _rejected(HARD | SOFT, instances, doubtful, policy)
    return both if len(both) < len(instances) else hard


def _rejected(
    filters: dict[str, Filter], instances: Sequence[Instance], places: list[int], policy: Policy
) -> dict[int, str]:
    found = {}
    for place in places:
        why = next((why for rule in filters.values() if (why := rule(instances[place], policy))), "")
        if why:
            found[place] = why
    return found
