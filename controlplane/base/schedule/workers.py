"""The control workers in the form that pages and `doctor` show."""

from dataclasses import dataclass
from datetime import datetime

import redis

from controlplane.base.schedule import reports
from controlplane.base.schedule.lease import lead


@dataclass(frozen=True)
class ControlWorker:
    name: str
    there: bool  # True if it has reported within the last seconds
    leads: bool
    since: datetime | None  # time at which it began to lead

    @property
    def status(self) -> str:
        """Return a term of the status vocabulary."""
        if not self.there:
            return "offline"
        return "ready" if self.leads else "stopped"

    @property
    def text(self) -> str:
        if not self.there:
            return "no heartbeat"
        return "leads" if self.leads else "stands by"


def control_workers() -> list[ControlWorker]:
    """Return the control workers, the leader first even if it has stopped. Without Redis, only the leader is known."""
    try:
        there = reports.workers()
    except redis.RedisError:
        there = []
    held = lead()
    leader = held.holder if held is not None else ""
    others = [ControlWorker(name, True, False, None) for name in there if name != leader]
    if not leader or held is None:
        return others
    return [ControlWorker(leader, leader in there, True, held.taken_at), *others]
