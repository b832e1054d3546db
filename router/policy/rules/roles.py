"""Roles are facts about engines: a decode-only instance needs an offload, and a prefill-only one never decodes. A
strategy never sees an instance whose role does not allow the request."""

from collections.abc import Callable, Iterable

from router.policy.fleet import FleetColumns
from router.policy.types import InstanceState, RoutingRequest

Misplaced = Callable[[InstanceState], str]  # why an instance's role does not allow the request; empty if it does

ONLY_PREFILLS = "it computes prompts for others"
ONLY_DECODES = "it decodes what others have computed"
NO_OFFLOAD = f"{ONLY_DECODES}, and the policy never offloads"
NO_PREFILL = f"{ONLY_DECODES}, and no instance that is able can compute for it"


def rule(instances: FleetColumns, request: RoutingRequest, limit: float, *, offloads: bool) -> Misplaced:
    """Set up the rule. `limit` is the limit of requests on one instance; `offloads` is True if the policy may have
    prompts computed on another instance."""
    why_none = _why_none_decodes(request, offloads=offloads)
    senders = () if why_none else _senders(instances, limit)

    def misplaced(instance: InstanceState) -> str:
        if instance.role == "prefill":
            return ONLY_PREFILLS if request.generates else ""
        if instance.role == "decode":
            return why_none or ("" if any(sends_to(one, instance) for one in senders) else NO_PREFILL)
        return ""

    return misplaced


def _why_none_decodes(request: RoutingRequest, *, offloads: bool) -> str:
    if not offloads:
        return NO_OFFLOAD
    return f"{ONLY_DECODES}, and this request cannot be offloaded: {request.indivisible}" if request.indivisible else ""


def _senders(instances: FleetColumns, limit: float) -> Iterable[InstanceState]:
    """Return one sender per connector, and all instances with which a decoder may be paired."""
    paired = {one.pair for one in instances if one.pair}
    able = [one for one in instances if prefills(one, limit)]
    return (*{one.connector: one for one in able}.values(), *(one for one in able if one.id in paired))


def prefills(instance: InstanceState, limit: float) -> bool:
    """Return whether the instance can compute a prompt for another one now."""
    return bool(instance.connector) and instance.role != "decode" and not instance.refused and instance.running < limit


def sends_to(prefiller: InstanceState, decoder: InstanceState) -> bool:
    return (
        prefiller.connector == decoder.connector and prefiller.id != decoder.id and decoder.pair in ("", prefiller.id)
    )
