"""Converts local times to instants. Pure."""

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

LOCAL = "%Y-%m-%dT%H:%M"
AT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}")


def instant(at: str, zone: str) -> datetime:
    """Return the instant in UTC. A time in a skipped hour moves forward; in a repeated hour, the first occurrence
    counts."""
    local = datetime.strptime(at, LOCAL).replace(tzinfo=ZoneInfo(zone), fold=0)
    # With fold=0 a skipped time is read with the offset before the gap: 02:30 becomes 03:30 of the new time.
    return local.astimezone(UTC)


def is_missed(starts_at: datetime, latest_s: int, now: datetime) -> bool:
    return now > starts_at + timedelta(seconds=latest_s)


def is_local_time(value: object) -> bool:
    if not isinstance(value, str) or not AT.fullmatch(value):
        return False
    try:
        datetime.strptime(value, LOCAL)
    except ValueError:
        return False
    return True


def is_zone(value: object) -> bool:
    """Return whether the text is the name of a time zone. `ZoneInfo` is not used, because it opens paths and raises
    many errors.
    """
    return isinstance(value, str) and value in _zones()


@cache
def _zones() -> set[str]:
    return available_timezones()
