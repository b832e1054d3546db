"""Who may be judged by a silence: after a time in which nobody could be heard, such as one without Redis, a report of
each is waited for. Pure."""

from typing import NamedTuple

from controlplane.dashboard.frame.types import Frame
from router.contract.redis.staleness import FRAME_GAP_S

RETURN_S = 20.0  # at most, until each has reported again


class Gap(NamedTuple):
    """A time without frames, in which reports were not read either."""

    began: float
    ended: float

    def is_owed(self, at: float, limit_s: float) -> bool:
        """Whether who last reported at `at` was there when it began, within `limit_s`, and not heard since its end."""
        return self.began - limit_s <= at < self.ended


def latest_gap(now: float, previous: Frame | None) -> Gap | None:
    """That after which reports are still waited for."""
    if previous is None:
        return None
    if now - previous["at"] > FRAME_GAP_S:
        return Gap(previous["at"], now)
    known = previous["health"].get("gap")
    return Gap(*known) if known is not None and now - known[1] <= RETURN_S else None


def is_owed(gap: Gap | None, at: float | None, limit_s: float) -> bool:
    return gap is not None and at is not None and gap.is_owed(at, limit_s)
