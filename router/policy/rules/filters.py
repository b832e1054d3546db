"""Filters for the instances that may take a request. A filter returns the reason for a rejection, or ""."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress, count

from router.policy.fleet import FleetColumns
from router.policy.rules import roles
from router.policy.types import KV_UNKNOWN, InstanceState, ParsedPolicy, RoutingRequest

Filter = Callable[[InstanceState, ParsedPolicy], str]


def refused(instance: InstanceState, policy: ParsedPolicy) -> str:
    return instance.refused


def in_flight(instance: InstanceState, policy: ParsedPolicy) -> str:
    limit = policy["admission.max_inflight_per_instance"]
    return f"its limit of requests is reached, {instance.running} of {limit}" if instance.running >= limit else ""


def kv_headroom(instance: InstanceState, policy: ParsedPolicy) -> str:
    limit = policy["load.kv_usage_max"]
    if instance.kv_usage == KV_UNKNOWN:
        return "its load is not known: its last figures are too old, stand still, or hid that it was full"
    return f"KV usage {100 * instance.kv_usage:.1f} % is above {100 * limit:.1f} %" if instance.kv_usage > limit else ""


def decode_role(instance: InstanceState, policy: ParsedPolicy) -> str:
    return roles.ONLY_DECODES if instance.role == "decode" else ""


HARD: dict[str, Filter] = {"refused": refused, "in_flight": in_flight}
# Each filter applies only if other instances remain: with a full KV cache, requests wait at the engine, but are not
# refused.
SOFT: dict[str, Filter] = {"decode_role": decode_role, "kv_headroom": kv_headroom}


def lost_pair(instances: FleetColumns, instance: InstanceState, policy: ParsedPolicy) -> str:
    if not instance.pair:
        return ""
    position = instances.position(instance.pair)
    able = position is not None and not instances[position].refused
    return "" if able else f"{instance.pair}, which prefills for it, is not able"


def refusals(
    instances: FleetColumns, request: RoutingRequest, policy: ParsedPolicy, *, offloads: bool, picks_prefill: bool
) -> dict[int, str]:
    """Return the rejected instances by index, each with the reason.

    `offloads`: the policy may have prompts computed on another instance; `picks_prefill`: its strategy also chooses the
    prefill instance, and is free to choose any instance that only decodes.
    """
    asked = doubtful(instances, policy)
    if not asked:
        return {}
    found = _rejected(HARD.values(), instances, asked, policy)
    found |= _misplaced(instances, request, [one for one in asked if one not in found], policy, offloads=offloads)
    for name, rule in ({"pair": partial(lost_pair, instances)} | SOFT).items():
        if name == "decode_role" and picks_prefill:
            continue
        rest = [position for position in asked if position not in found]
        more = _rejected((rule,), instances, rest, policy)
        if len(found) + len(more) < len(instances):
            found |= more
    return found


def _misplaced(
    instances: FleetColumns, request: RoutingRequest, positions: Sequence[int], policy: ParsedPolicy, *, offloads: bool
) -> dict[int, str]:
    if not instances.is_divided:
        return {}
    limit: int = policy["admission.max_inflight_per_instance"]
    rule = roles.rule(instances, request, limit, offloads=offloads)
    return {position: why for position in positions if (why := rule(instances[position]))}


def doubtful(instances: FleetColumns, policy: ParsedPolicy) -> list[int]:
    """Return the indexes of instances that need a filter check. A healthy fleet has none, and then no instance costs
    anything."""
    if not instances.instances:
        return []
    limit: int = policy["admission.max_inflight_per_instance"]
    kv_limit: float = policy["load.kv_usage_max"]
    if not instances.is_divided:
        for running, used, why in zip(instances.running, instances.kv_usage, instances.refused):  # noqa: B905 - columns
            if running >= limit or used > kv_limit or why:
                break
        else:
            return []
    return list(compress(count(), instances.column(is_doubtful, limit, kv_limit)))


def is_doubtful(instance: InstanceState, limit: int, kv_limit: float) -> bool:
    usual = not instance.refused and instance.running < limit and instance.kv_usage <= kv_limit
    return not usual or instance.role != "both"


def _rejected(
    filters: Iterable[Filter], instances: Sequence[InstanceState], positions: Sequence[int], policy: ParsedPolicy
) -> dict[int, str]:
    rules, found = tuple(filters), {}
    for position in positions:
        why = next((why for rule in rules if (why := rule(instances[position], policy))), "")
        if why:
            found[position] = why
    return found
