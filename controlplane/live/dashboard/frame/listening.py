"""Who may be judged by a silence: after a time in which nobody could be heard, such as one without Redis, a report of
each is waited for; so it is in an empty Redis, which has forgotten who was there. Pure."""

from typing import NamedTuple

from controlplane.live.dashboard.frame.types import Frame, Health
from router.contract.redis.staleness import FRAME_GAP_S

RETURN_S = 20.0  # at most, until each has reported again


class Gap(NamedTuple):
    """A time without frames, in which reports were not read either. Of no length: nothing is known of before."""

    began: float
    ended: float

    def is_owed(self, at: float | None, limit_s: float) -> bool:
        """Whether who last reported at `at` was there when it began, within `limit_s`, and not heard since its end."""
        if self.began == self.ended:
            return at is None
        return at is not None and self.began - limit_s <= at < self.ended


def latest_gap(now: float, previous: Frame | None) -> Gap | None:
    """That after which reports are still waited for."""
    if previous is None:
        return Gap(now, now)
    if now - previous["at"] > FRAME_GAP_S:
        return Gap(previous["at"], now)
    known = previous["health"].get("gap")
    return Gap(*known) if known is not None and now - known[1] <= RETURN_S else None


def is_owed(gap: Gap | None, at: float | None, limit_s: float) -> bool:
    return gap is not None and gap.is_owed(at, limit_s)


def begins_anew(health: Health) -> bool:
    """Whether live state is so new that what is missing in it may be on its way."""
    began, ended = health.get("gap", (0.0, 1.0))
    return began == ended
