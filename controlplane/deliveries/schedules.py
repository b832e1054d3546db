"""The instant of a local start. Pure."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

LOCAL = "%Y-%m-%dT%H:%M"


def instant(at: str, zone: str) -> datetime:
    """In UTC. An hour that the clocks skip moves on by what they skip; of a doubled hour the first counts."""
    local = datetime.strptime(at, LOCAL).replace(tzinfo=ZoneInfo(zone), fold=0)
    # With fold=0 a skipped time is read with the offset before the gap: 02:30 becomes 03:30 of the new time.
    return local.astimezone(UTC)


def is_missed(starts_at: datetime, latest_s: int, now: datetime) -> bool:
    return now > starts_at + timedelta(seconds=latest_s)
