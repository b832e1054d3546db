"""Determines when a freeze is in force, and whether its rule is valid. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr
from msgspec import Struct

from controlplane.traffic.deliveries.timing.schedules import LOCAL, instant, is_local_time, is_zone
from router.contract.values.problem import Problem, shown

HORIZON = timedelta(days=366)  # how far ahead occurrences are searched
LONGEST = timedelta(days=92)  # longest occurrence
FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
PARTS = ("FREQ", "INTERVAL", "UNTIL", "BYDAY", "BYMONTHDAY", "BYMONTH", "BYYEARDAY", "BYWEEKNO", "BYSETPOS", "WKST")
NOT_WITH = {
    "BYMONTHDAY": ("WEEKLY",),
    "BYYEARDAY": ("DAILY", "WEEKLY", "MONTHLY"),
    "BYWEEKNO": ("DAILY", "WEEKLY", "MONTHLY"),
    "BYSETPOS": ("DAILY",),  # a day is the whole set
}
LEAP_YEAR = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # days of the months
OCCURRENCES_MAX = 400  # largest number of occurrences within HORIZON and LONGEST; DAILY has slightly more than 366
INTERVAL_MAX = 1_000
EARLIEST = 2020  # earliest year of a first occurrence, from which dateutil counts


@dataclass(frozen=True, slots=True)
class Occurrence:
    start: datetime  # UTC
    end: datetime


class FreezeRule(Struct, frozen=True):
    name: str
    policies: tuple[str, ...]  # empty for all
    start: str  # first occurrence, local time
    end: str
    zone: str
    rrule: str = ""  # empty for a single occurrence
    behaviour: str = "hold"  # or "abort"
    reason: str = ""

    def concerns(self, policy: str) -> bool:
        return not self.policies or policy in self.policies


def occurrences(rule: FreezeRule, since: datetime, until: datetime) -> list[Occurrence]:
    """Return the occurrences that overlap [since, until), by start. Local times stay the same across clock changes."""
    first, end = datetime.strptime(rule.start, LOCAL), datetime.strptime(rule.end, LOCAL)
    length = end - first
    starts = [first] if not rule.rrule else _starts(rule, first, length, since, until)
    found = (Occurrence(_utc(each, rule.zone), _utc(each + length, rule.zone)) for each in starts)
    return [each for each in found if each.start < until and each.end > since and each.start < each.end]


def _starts(rule: FreezeRule, first: datetime, length: timedelta, since: datetime, until: datetime) -> list[datetime]:
    zone, slack = ZoneInfo(rule.zone), timedelta(days=1)  # clocks may change in between
    low = since.astimezone(zone).replace(tzinfo=None) - length - slack
    high = until.astimezone(zone).replace(tzinfo=None) + slack
    made = _parsed(rule.rrule, first)
    # Without an end, dateutil would search 8,000 years for February 30.
    made = made.replace(until=min(high, made._until or high))
    return [*made.between(low, high, inc=True)[:OCCURRENCES_MAX]]


def _parsed(text: str, first: datetime) -> rrule:
    made = rrulestr(text, dtstart=first)
    if not isinstance(made, rrule):
        raise ValueError("must be one RRULE")
    return made


def _utc(local: datetime, zone: str) -> datetime:
    return instant(local.strftime(LOCAL), zone)


def in_force(rules: Iterable[FreezeRule], policy: str, now: datetime) -> tuple[FreezeRule, Occurrence] | None:
    """Return the freeze in effect. Aborting freezes take precedence; among several, the one that ends last."""
    found = [
        (rule, each)
        for rule in rules
        if rule.concerns(policy)
        for each in occurrences(rule, now, now + timedelta(microseconds=1))
    ]
    return max(found, key=lambda pair: (pair[0].behaviour == "abort", pair[1].end), default=None)


def ends(rule: FreezeRule, each: Occurrence) -> str:
    """Format the end, in the freeze's own time zone."""
    return f"{each.end.astimezone(ZoneInfo(rule.zone)):%Y-%m-%d %H:%M} ({rule.zone})"


def said(rule: FreezeRule, each: Occurrence) -> str:
    return f"freeze {rule.name} until {ends(rule, each)}"


# Checking


def problems_of(rule: FreezeRule, known: Iterable[str], now: datetime) -> list[Problem]:
    """Return the problems of a rule. `known` are the names of policies."""
    problems = [*_times(rule), *_policies(rule.policies, set(known))]
    if rule.behaviour not in ("hold", "abort"):
        problems.append(_problem("behaviour", rule.behaviour, "not one of the allowed values", "hold, abort"))
    return problems or _rule_problems(rule, now)


def _problem(path: str, value: object, message: str, allowed: str = "") -> Problem:
    return Problem(path, shown(value), message, allowed)


def _times(rule: FreezeRule) -> list[Problem]:
    problems = [
        _problem(key, value, "must be a local date and time", "such as 2026-12-24T18:00")
        for key, value in (("start", rule.start), ("end", rule.end))
        if not is_local_time(value)
    ]
    if not is_zone(rule.zone):
        problems.append(_problem("zone", rule.zone, "must be the name of a time zone", "such as Europe/Berlin"))
    if problems:
        return problems
    if int(rule.start[:4]) < EARLIEST:
        return [_problem("start", rule.start, "is too long ago", f"{EARLIEST} or later")]
    length = datetime.strptime(rule.end, LOCAL) - datetime.strptime(rule.start, LOCAL)
    if not timedelta(0) < length <= LONGEST:
        return [_problem("end", rule.end, "must be after the start", f"up to {LONGEST.days} days after the start")]
    return []


def _policies(names: Iterable[str], known: set[str]) -> list[Problem]:
    return [
        _problem(f"policies[{n}]", name, "there is no such policy", ", ".join(sorted(known)))
        for n, name in enumerate(names)
        if name not in known
    ]


def _rule_problems(rule: FreezeRule, now: datetime) -> list[Problem]:
    fault = rrule_fault(rule.rrule, rule.start) if rule.rrule else ""
    if fault:
        return [_problem("rrule", rule.rrule, fault, "FREQ=DAILY or longer; " + ", ".join(PARTS[1:]))]
    if not occurrences(rule, now, now + HORIZON):
        path = "rrule" if rule.rrule else "end"
        return [_problem(path, rule.rrule or rule.end, "the freeze does not occur within a year from now")]
    return []


def rrule_fault(text: str, start: str) -> str:
    """Return the problem of a rule; empty if there is none."""
    if not re.fullmatch(r"[A-Z0-9=;,:+\-]{1,200}", text):
        return "must be the parts of an RRULE, such as FREQ=WEEKLY;BYDAY=FR"
    parts = dict(part.partition("=")[::2] for part in text.split(";"))
    if len(parts) != len(text.split(";")):
        return "names a part twice"
    for name in parts:
        if name not in PARTS:
            return f"{name} is not allowed"
    if parts.get("FREQ") not in FREQUENCIES:
        return "FREQ must be " + ", ".join(FREQUENCIES[:-1]) + " or YEARLY"
    return _interval_fault(parts) or _never(parts) or _dateutil_fault(text, start)


def _interval_fault(parts: Mapping[str, str]) -> str:
    text = parts.get("INTERVAL", "1")
    return "" if text.isdecimal() and 1 <= int(text) <= INTERVAL_MAX else f"INTERVAL must be 1 to {INTERVAL_MAX}"


def _never(parts: Mapping[str, str]) -> str:
    """Return parts forbidden by RFC 5545 (3.3.10), and days that no year has, for which dateutil would search until the
    year 9999."""
    for name, frequencies in NOT_WITH.items():
        if name in parts and parts["FREQ"] in frequencies:
            return f"{name} is not allowed with FREQ={parts['FREQ']}"
    months, days = (_numbers(parts.get(name, "")) for name in ("BYMONTH", "BYMONTHDAY"))
    if not all(1 <= month <= 12 for month in months):
        return "BYMONTH must be 1 to 12"
    if not all(1 <= abs(day) <= 31 for day in days):
        return "BYMONTHDAY must be 1 to 31, or -31 to -1 from the month's end"
    longest = max((LEAP_YEAR[month - 1] for month in months), default=31)
    return "" if not days or any(abs(day) <= longest for day in days) else "none of its months has such a day"


def _numbers(text: str) -> list[int]:
    """Return the readable numbers of a list; dateutil refuses the rest."""
    return [int(each) for each in re.findall(r"[+-]?\d+", text)]


def _dateutil_fault(text: str, start: str) -> str:
    try:
        _parsed(text, datetime.strptime(start, LOCAL))
    except Exception as error:  # dateutil passes on any exception of its parser
        return f"cannot be read: {error}"
    return ""
