"""Whether instances could take requests at all, whatever their load. Pure."""

from collections.abc import Sequence
from math import inf

from router.policy.fleet import fleet_of
from router.policy.rules import roles
from router.policy.strategies import STRATEGIES
from router.policy.types import InstanceState, Policy, RoutingRequest

ANY = RoutingRequest(1)


def able(request: RoutingRequest, instances: Sequence[InstanceState], policy: Policy) -> bool:
    """An instance could take the request if it had capacity."""
    return _able(request, instances, offloads=offloads(policy))


def why_not(policy: Policy, instances: Sequence[InstanceState]) -> str:
    """Why the policy could send no request to these instances though another policy could; empty when it can."""
    if offloads(policy) or _able(ANY, instances, offloads=False) or not _able(ANY, instances, offloads=True):
        return ""
    prefilling = sum(one.role == "prefill" for one in instances)
    return (
        f"{prefilling} of its {len(instances)} instances only compute prompts and the others only decode: they serve "
        f"requests together, by offloads, and the strategy {policy.strategy} with flow.heavy colocated never offloads. "
        f"Set flow.heavy to offload, or take one of {', '.join(OFFLOADING)}"
    )


def reads_kv(policy: Policy) -> bool:
    """It compares how full the KV caches of the instances are: engines without that figure all look empty."""
    if policy.strategy in ("conditional_offload", "dynamo"):
        return True
    weights = (one.name for one in STRATEGIES[policy.strategy].parameters if one.metric == "instance.kv_usage_max")
    return any(policy[name] > 0 for name in weights)


def offloads(policy: Policy) -> bool:
    """The policy may have prompts computed on another instance than their answers."""
    return STRATEGIES[policy.strategy].offloads or policy["flow.heavy"] == "offload"


OFFLOADING = tuple(name for name, strategy in STRATEGIES.items() if strategy.offloads)


def _able(request: RoutingRequest, instances: Sequence[InstanceState], *, offloads: bool) -> bool:
    misplaced = roles.rule(fleet_of(instances), request, inf, offloads=offloads)
    return any(not one.refused and not misplaced(one) for one in instances)
