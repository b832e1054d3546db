"""Data-parallel ranks that step together and are one entry of the event queue."""

from collections.abc import Iterable, Sequence

from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.lockstep import Lockstep


class SimStepGroup:
    def __init__(self, endpoints: Sequence[SimEndpoint]) -> None:
        self.endpoints = endpoints
        self.lockstep = Lockstep([endpoint.engine for endpoint in endpoints])

    @property
    def due_s(self) -> float | None:
        """The next event of the group."""
        return self.endpoints[0].due_s

    @due_s.setter
    def due_s(self, due_s: float | None) -> None:
        for endpoint in self.endpoints:
            endpoint.due_s = due_s


def step_groups(endpoints: Iterable[SimEndpoint]) -> dict[SimEndpoint, SimStepGroup]:
    """Return the group of each endpoint that has one."""
    found: dict[SimEndpoint, SimStepGroup] = {}
    for endpoint in endpoints:
        if len(endpoint.group) > 1 and endpoint not in found:
            found |= dict.fromkeys(endpoint.group, SimStepGroup(endpoint.group))
    return found
