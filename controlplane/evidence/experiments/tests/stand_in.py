"""Replaces the fleet and the routers: runs are played against one given endpoint."""

from typing import Any

from controlplane.evidence.experiments.models import Arm
from controlplane.evidence.experiments.modes import ephemeral_pool


class StandIn:
    """Replaces the functions of `ephemeral_pool` that a replay calls."""

    def __init__(self, url: str, fails: Exception | None = None) -> None:
        self.url, self.fails = url, fails
        self.set_up_for: list[str] = []
        self.torn_down: list[str] = []

    def install(self, patch: Any) -> None:
        """`patch(name, value)` replaces one function of ephemeral_pool."""
        patch("set_up", self.set_up)
        patch("tear_down", self.torn_down.append)
        patch("keep_policy", lambda run, arm: None)
        patch("context_tokens", lambda pool: 131_072)
        patch("bytes_per_token", lambda pool: 4.0)
        patch("router_urls", lambda: [self.url])
        patch("endpoint_names", lambda pool: ["fake-0", "fake-1"])
        patch("instance_urls", lambda pool: [])

    def set_up(self, run: Any, experiment: Any, arm: Arm, heartbeat: Any) -> Any:
        from fleet.models import Pool

        heartbeat.beat(step="starting the pool")
        self.set_up_for.append(arm.name)
        if self.fails is not None:
            raise self.fails
        return Pool(name=run.pool_name, model="fake", kind="sim")


RunFailed = ephemeral_pool.RunFailed
