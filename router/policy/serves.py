"""The test of whether instances could take a request at all, regardless of load. Pure."""

from collections.abc import Sequence
from math import inf

from router.policy.fleet import fleet_of
from router.policy.rules import roles
from router.policy.schema import document
from router.policy.types import InstanceState, ParsedPolicy, RoutingRequest

ANY = RoutingRequest(1)


def able(request: RoutingRequest, instances: Sequence[InstanceState], policy: ParsedPolicy) -> bool:
    """Return whether an instance could take the request if it had capacity."""
    misplaced = roles.rule(fleet_of(instances), request, inf, offloads=document.offloads(policy))
    return any(not one.refused and not misplaced(one) for one in instances)
