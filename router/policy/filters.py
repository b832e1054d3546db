"""Which instances may take a request at all. A filter says why not, in words; empty means yes."""

from collections.abc import Callable, Iterable, Sequence

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


def prefill_role(instance: Instance, policy: Policy) -> str:
    return "it computes prompts for others" if instance.role == "prefill" else ""


def decode_role(instance: Instance, policy: Policy) -> str:
    return "it decodes what others have computed" if instance.role == "decode" else ""


HARD: dict[str, Filter] = {"refused": refused, "in_flight": in_flight}
# Each sets instances aside only while others are left: whoever can serve does so before nobody does, and a full KV
# cache makes requests wait, it does not make the engine refuse them.
SOFT: dict[str, Filter] = {"prefill_role": prefill_role, "decode_role": decode_role, "kv_headroom": kv_headroom}


def refusals(instances: Sequence[Instance], policy: Policy, *, offloads: bool = False) -> dict[int, str]:
    """Why instances may not take the request, by their place in the list; those that may are not in it.

    `offloads`: the route has prompts computed elsewhere, so that instances which only decode are its to choose from.
    """
    limit, kv_limit = policy["admission.max_inflight_per_instance"], policy["load.kv_usage_max"]
    # One cheap pass finds whom the filters have to be asked about: in a fleet that is well, nobody.
    doubtful = [
        place
        for place, instance in enumerate(instances)
        if instance.refused or instance.running >= limit or instance.kv_usage > kv_limit or instance.role != "both"
    ]
    if not doubtful:
        return {}
    found = _rejected(HARD.values(), instances, doubtful, policy)
    for name, rule in SOFT.items():
        if name == "decode_role" and offloads:
            continue
        rest = [place for place in doubtful if place not in found]
        more = _rejected((rule,), instances, rest, policy)
        if len(found) + len(more) < len(instances):
            found |= more
    return found


def _rejected(
    filters: Iterable[Filter], instances: Sequence[Instance], places: Sequence[int], policy: Policy
) -> dict[int, str]:
    rules, found = tuple(filters), {}
    for place in places:
        why = next((why for rule in rules if (why := rule(instances[place], policy))), "")
        if why:
            found[place] = why
    return found
