"""Where a router has its pools from, and where its reports go: Redis (shared.py) or files (standalone.py)."""

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

from prometheus_client.core import Metric

from router.serving.pools import Pools
from router.serving.sessions import Sessions
from router.telemetry.recorder import Recorder


class PoolSource(Protocol):
    id: str  # the router's name
    pools: Pools  # kept up to date by the tasks below
    recorder: Recorder
    sessions: Sessions

    @property
    def looked_at(self) -> float | None:
        """When the fleet was last looked at, Unix seconds."""

    async def start(self) -> None:
        """Take up what is there before the first request comes; go on without it when nothing is."""

    def tasks(self) -> list[Awaitable[None]]:
        """What keeps everything up to date; each ends soon after `end`."""

    def end(self) -> None:
        """Tell the tasks to end, each between two of its steps."""

    async def leave(self) -> None:
        """The tasks are over: write what is pending, close what is open."""

    def degraded(self) -> list[str]:
        """What is not as it should be, in words."""

    def health(self) -> Mapping[str, Any]:
        """What /healthz says besides."""

    def metrics(self) -> Iterable[Metric]:
        """What /metrics has besides."""

    def page(self, path: str, client: str) -> bytes | None:
        """JSON of a GET on a path that only this source knows; `client` is the address that asks."""
