"""Checks whether a simulated load is within the calibration of its engines. Pure."""

from collections import defaultdict
from collections.abc import Sequence

from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.evidence.twin.simulation.types import Simulated
from fleet.engine.engine_model import LoadRange, RequestLoad, ServedRequest


def outside_of(endpoints: Sequence[SimEndpoint], requests: Sequence[Simulated]) -> tuple[str, ...]:
    """Describe the load outside the known range of engines; empty if no significant part is."""
    known = {one.id: one.model.calibrated for one in endpoints if one.model.calibrated is not None}
    served: defaultdict[str, list[ServedRequest]] = defaultdict(list)
    for one in requests if known else ():
        if one.instance in known and one.e2e_s is not None:
            begin_s, new_tokens = one.sent_s + one.queued_s, one.input_tokens - one.cached_tokens
            served[one.instance].append(ServedRequest(begin_s, one.sent_s + one.e2e_s, new_tokens))
    found: dict[str, None] = {}
    for between in dict.fromkeys(known.values()):
        found |= dict.fromkeys(_load(served, known, between).outside(between))
    return tuple(found)


def _load(served: dict[str, list[ServedRequest]], known: dict[str, LoadRange], between: LoadRange) -> RequestLoad:
    return RequestLoad.of([requests for name, requests in served.items() if known[name] == between])
