"""The current number of instances of a pool: declared, scheduled or set by the autoscaler. Pure."""

import datetime as dt
import zoneinfo
from dataclasses import dataclass

from fleet.spec.sections import DAYS, Autoscale, Schedule, ScheduleWindow


@dataclass(frozen=True, slots=True)
class Scale:
    replicas: int
    because: str = ""  # empty if as declared
    prefills: int | None = None  # prefill replicas; None: as declared


def current_scale(
    declared: int, schedule: Schedule, autoscale: Autoscale | None, scaled: int | None, now: dt.datetime
) -> Scale:
    """Return the current scale. A schedule replaces the declared number and is the autoscaler's lower limit."""
    window = active(schedule, now)
    base = Scale(declared) if window is None else Scale(window.replicas, f"scheduled {window.text} {schedule.timezone}")
    if autoscale is None or autoscale.mode != "automatic" or scaled is None:
        return base
    minimum = autoscale.min if window is None else max(autoscale.min, min(window.replicas, autoscale.max))
    replicas = min(max(scaled, minimum), autoscale.max)
    return Scale(replicas, "set by the autoscaler" if replicas == scaled or not base.because else base.because)


def current_prefills(declared: int, autoscale: Autoscale, scaled: int | None, replicas: int) -> int:
    """Return how many of `replicas` prefill: the number `scaled` by the autoscaler, within its limits, or else as
    declared."""
    if autoscale.mode != "automatic" or scaled is None or autoscale.prefill_max is None:
        return min(declared, replicas)
    within = min(max(scaled, autoscale.prefill_min or 1), autoscale.prefill_max)
    return min(replicas, max(1, min(within, replicas - (autoscale.decode_min or 1))))


def active(schedule: Schedule, now: dt.datetime) -> ScheduleWindow | None:
    """Return the first window that covers `now` (aware)."""
    local = now.astimezone(zone(schedule.timezone))
    minute, day = local.hour * 60 + local.minute, local.weekday()
    return next((window for window in schedule.windows if _covers(window, day, minute)), None)


def zone(name: str) -> dt.tzinfo:
    return dt.UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def _covers(window: ScheduleWindow, day: int, minute: int) -> bool:
    begins_today, began_yesterday = DAYS[day] in window.days, DAYS[day - 1] in window.days
    if window.begins < window.ends:
        return begins_today and window.begins <= minute < window.ends
    return (begins_today and minute >= window.begins) or (began_yesterday and minute < window.ends)
