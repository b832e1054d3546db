"""Decides which senders may be judged by their silence. Pure. After a time without frames, such as one without Redis,
each sender gets time to report again. The same holds for an empty Redis, which knows no senders.
"""

from typing import NamedTuple

from controlplane.live.dashboard.frame.types import Frame, Health
from router.contract.redis.staleness import FRAME_GAP_S

RETURN_S = 20.0  # longest wait until all have reported again


class Gap(NamedTuple):
    """A time without frames, during which reports were not read either. If its length is zero, nothing is known about
    the time before it."""

    began: float
    ended: float

    def is_owed(self, at: float | None, limit_s: float) -> bool:
        """Return whether a sender that last reported at `at` was alive when the gap began, within `limit_s`, and has
        not reported since then.
        """
        if self.began == self.ended:
            return at is None
        return at is not None and self.began - limit_s <= at < self.ended


def latest_gap(now: float, previous: Frame | None) -> Gap | None:
    """Return the gap since which reports are still awaited."""
    if previous is None:
        return Gap(now, now)
    if now - previous["at"] > FRAME_GAP_S:
        return Gap(previous["at"], now)
    known = previous["health"].get("gap")
    return Gap(*known) if known is not None and now - known[1] <= RETURN_S else None


def latest_unwritten(now: float, read_only: bool, previous: Frame | None) -> Gap | None:
    """Return the time in which the database refused writes, if steps are still awaited after it."""
    before = previous["health"] if previous is not None else None
    known = before.get("unwritten") if before is not None else None
    if read_only:
        return Gap(known[0] if known is not None and before is not None and before["read_only"] else now, now)
    return Gap(*known) if known is not None and now - known[1] <= RETURN_S else None


def is_owed(gap: Gap | None, at: float | None, limit_s: float) -> bool:
    return gap is not None and gap.is_owed(at, limit_s)


def begins_anew(health: Health) -> bool:
    """Return whether the live state is so new that missing parts may still arrive."""
    began, ended = health.get("gap", (0.0, 1.0))
    return began == ended
