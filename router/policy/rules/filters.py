"""Which instances may take a request at all. A filter says why not, in words; empty means yes."""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress, count

from router.policy.fleet import FleetColumns
from router.policy.types import InstanceState, Policy

Filter = Callable[[InstanceState, Policy], str]


def refused(instance: InstanceState, policy: Policy) -> str:
    return instance.refused


def in_flight(instance: InstanceState, policy: Policy) -> str:
    limit = policy["admission.max_inflight_per_instance"]
    return f"its limit of requests is reached, {instance.running} of {limit}" if instance.running >= limit else ""


def kv_headroom(instance: InstanceState, policy: Policy) -> str:
    limit = policy["load.kv_usage_max"]
    return f"KV usage {instance.kv_usage:.1%} is above {limit:.1%}" if instance.kv_usage > limit else ""


def prefill_role(instance: InstanceState, policy: Policy) -> str:
    return "it computes prompts for others" if instance.role == "prefill" else ""


def decode_role(instance: InstanceState, policy: Policy) -> str:
    return "it decodes what others have computed" if instance.role == "decode" else ""


HARD: dict[str, Filter] = {"refused": refused, "in_flight": in_flight}
# Each sets instances aside only while others are left: whoever can serve does so before nobody does, and a full KV
# cache makes requests wait, it does not make the engine refuse them.
SOFT: dict[str, Filter] = {"prefill_role": prefill_role, "decode_role": decode_role, "kv_headroom": kv_headroom}


def refusals(instances: FleetColumns, policy: Policy, *, offloads: bool = False) -> dict[int, str]:
    """Why instances may not take the request, by their place in the list; those that may are not in it.

    `offloads`: the route has prompts computed elsewhere, so that instances which only decode are its to choose from.
    """
    asked = doubtful(instances, policy)
    if not asked:
        return {}
    found = _rejected(HARD.values(), instances, asked, policy)
    for name, rule in SOFT.items():
        if name == "decode_role" and offloads:
            continue
        rest = [place for place in asked if place not in found]
        more = _rejected((rule,), instances, rest, policy)
        if len(found) + len(more) < len(instances):
            found |= more
    return found


def doubtful(instances: FleetColumns, policy: Policy) -> list[int]:
    """Whom the filters have to be asked about: in a fleet that is well, nobody."""
    asked = instances.column(is_doubtful, policy["admission.max_inflight_per_instance"], policy["load.kv_usage_max"])
    return list(compress(count(), asked)) if True in asked else []


def is_doubtful(instance: InstanceState, limit: int, kv_limit: float) -> bool:
    usual = not instance.refused and instance.running < limit and instance.kv_usage <= kv_limit
    return not usual or instance.role != "both"


def _rejected(
    filters: Iterable[Filter], instances: Sequence[InstanceState], places: Sequence[int], policy: Policy
) -> dict[int, str]:
    rules, found = tuple(filters), {}
    for place in places:
        why = next((why for rule in rules if (why := rule(instances[place], policy))), "")
        if why:
            found[place] = why
    return found
