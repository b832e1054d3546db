"""The origin of a router's pools and the destination of its reports: Redis (sync/) or files (standalone/)."""

from collections.abc import Awaitable, Iterable
from typing import Protocol

from prometheus_client.core import Metric

from router.contract.values.json_value import JsonObject
from router.serving.pools import Pools
from router.serving.prompt.sessions import Sessions
from router.serving.stored import StoredResponses
from router.telemetry.recorder import Recorder


class PoolSource(Protocol):
    id: str  # id of the router
    pools: Pools  # kept up to date by `tasks`
    recorder: Recorder
    sessions: Sessions
    responses: StoredResponses

    @property
    def looked_at(self) -> float | None:
        """Time when the fleet was last read, Unix seconds."""

    @property
    def routers(self) -> int:
        """Number of live routers that share the state, including this one."""

    async def start(self) -> None:
        """Read the first state before requests arrive; continue without it if it is missing."""

    def tasks(self) -> list[Awaitable[None]]:
        """Loops that keep the state up to date; each ends soon after a call of `end`."""

    def end(self) -> None:
        """Ask the tasks to end, each between two of its steps."""

    async def leave(self) -> None:
        """Write pending reports and close connections, after the tasks have ended."""

    def degraded(self) -> list[str]:
        """Return problems as sentences for operators."""

    def health(self) -> JsonObject:
        """Return additional fields of /healthz."""

    def metrics(self) -> Iterable[Metric]:
        """Return additional metrics of /metrics."""

    def page(self, path: str, client: str) -> bytes | None:
        """Return JSON for a GET on a path that only this source serves; `client` is the caller's address."""
