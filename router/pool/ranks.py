"""State shared by the data-parallel ranks of an instance: connections, breaker, and how requests name a rank. Under
hybrid load balancing, the ranks of several instances form one group and are numbered across it from 0. In a request's
header, vLLM's Python front end expects a number within its own instance, its Rust front end a number within the group.
Once per epoch, the router asks the engine which of the two it expects (router/upstream/rank_numbering.py). For the
instance with the group's first ranks, both are equal.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from router.contract import ranks
from router.contract.redis.published import PublishedInstance
from router.upstream.breaker import Breaker
from router.upstream.connection_pool import ConnectionPool

if TYPE_CHECKING:
    from router.pool.endpoint import Endpoint

RANK_REFUSED = "requests that name a data-parallel rank"  # reason under which an endpoint counts them
LONGEST_REASON = 200  # characters of an engine's answer


class InstanceRanks:
    def __init__(self, instance: PublishedInstance) -> None:
        self.instance = instance.id
        self.dp = instance.dp
        self.upstream = ConnectionPool(instance.url, instance.tls)
        self.breaker = Breaker()
        self.endpoints: list[Endpoint] = []
        self.trouble = ""  # why requests do not name their rank
        self.is_numbered = self.dp.ranks > 1 and not self.dp.first  # True if requests name their rank

    def add(self, endpoint: "Endpoint") -> None:
        self.endpoints.append(endpoint)
        if self.is_numbered:
            self._name(endpoint, of_group=False)

    def numbered(self, *, of_group: bool) -> None:
        """Record the engine's answer: whether it expects the group's rank numbers or its own."""
        self.is_numbered, self.trouble = True, ""
        for endpoint in self.endpoints:
            self._name(endpoint, of_group=of_group)

    def refused(self, endpoint: "Endpoint", why: str) -> None:
        """Stop naming a rank that the engine does not know, until the engine restarts."""
        self.trouble = f"{endpoint.id} is sent requests without its rank: {why[:LONGEST_REASON]}"
        endpoint.rank_line = b""
        endpoint.note_refused(RANK_REFUSED)

    def touch(self) -> None:
        """Mark all ranks as changed together with the breaker."""
        for endpoint in self.endpoints:
            endpoint.touch()

    def _name(self, endpoint: "Endpoint", *, of_group: bool) -> None:
        number = (endpoint.rank or 0) if of_group else (endpoint.rank or 0) - self.dp.first
        endpoint.rank_line = b"%b: %d\r\n" % (ranks.HEADER, number)


class StepGroup:
    """Ranks that step together, as for MoE models: a prompt on one delays the decodes of all."""

    def __init__(self, endpoints: Iterable["Endpoint"]) -> None:
        self._endpoints = tuple(endpoints)
        self._decodes: int | None = None  # decodes of all routers; None until they are counted
        for endpoint in self._endpoints:
            endpoint.step_group = self
            endpoint.touch()

    @property
    def decodes(self) -> int:
        if self._decodes is None:
            self._decodes = sum(endpoint.decodes + endpoint.others[2] for endpoint in self._endpoints)
        return self._decodes

    def changed(self) -> None:
        self._decodes = None
        for endpoint in self._endpoints:
            endpoint.touch()
