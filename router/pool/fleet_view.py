"""A pool's instances as the policy sees them, kept between decisions.

Only instances that changed are updated, and those whose breaker is not closed: its state depends on the time.
"""

from collections.abc import Mapping

from router.policy.fleet import FleetColumns
from router.policy.types import InstanceState
from router.policy.value import replace
from router.pool.endpoint import Endpoint


class FleetView:
    def __init__(self) -> None:
        self._changed: set[str] = set()  # ids
        self._suspects: set[str] = set()  # breaker open or half open
        self._endpoints: Mapping[str, Endpoint] = {}
        self._fleet: FleetColumns | None = None

    def take(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints, self._fleet = endpoints, None
        self._changed, self._suspects = set(), set()
        for endpoint in endpoints.values():
            endpoint.changes = self._changed

    def fleet(self, tried: Mapping[str, str], now: float, open_s: float) -> FleetColumns:
        """`tried`: instances that failed this request, with the error; `now` is the loop's time."""
        fleet = self._fleet
        if fleet is None:
            fleet = self._fleet = FleetColumns(
                self._seen(endpoint, now, open_s) for endpoint in self._endpoints.values()
            )
        else:
            for name in self._changed | self._suspects:
                position = fleet.position(name)
                if position is not None:
                    fleet.replace(position, self._seen(self._endpoints[name], now, open_s))
        self._changed.clear()
        if not tried:
            return fleet
        return FleetColumns(replace(one, refused=tried[one.id]) if one.id in tried else one for one in fleet)

    def _seen(self, endpoint: Endpoint, now: float, open_s: float) -> InstanceState:
        if endpoint.breaker.state != "closed":
            self._suspects.add(endpoint.id)
        elif self._suspects:
            self._suspects.discard(endpoint.id)
        return endpoint.view(endpoint.refusal(now, open_s))
