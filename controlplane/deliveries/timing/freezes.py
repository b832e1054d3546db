"""The times of a freeze. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr

from controlplane.deliveries.timing.schedules import LOCAL, instant, is_local_time, is_zone
from router.contract.problem import Problem, shown

HORIZON = timedelta(days=366)  # farther occurrences are not looked for
LONGEST = timedelta(days=92)  # of one occurrence
FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
PARTS = ("FREQ", "INTERVAL", "UNTIL", "BYDAY", "BYMONTHDAY", "BYMONTH", "BYYEARDAY", "BYWEEKNO", "BYSETPOS", "WKST")
OCCURRENCES_MAX = 400  # within HORIZON and LONGEST; DAILY has 366 and some
INTERVAL_MAX = 1_000
EARLIEST = 2020  # year of the first occurrence: dateutil counts from there


@dataclass(frozen=True, slots=True)
class Occurrence:
    start: datetime  # UTC
    end: datetime


@dataclass(frozen=True, slots=True)
class FreezeRule:
    name: str
    policies: tuple[str, ...]  # empty: all
    start: str  # of the first occurrence, local
    end: str
    zone: str
    rrule: str  # empty: once
    behaviour: str  # "hold" or "abort"

    def concerns(self, policy: str) -> bool:
        return not self.policies or policy in self.policies


def occurrences(rule: FreezeRule, since: datetime, until: datetime) -> list[Occurrence]:
    """The occurrences that overlap [since, until), by start. Local times stay the same across clock changes."""
    first, end = datetime.strptime(rule.start, LOCAL), datetime.strptime(rule.end, LOCAL)
    length = end - first
    starts = [first] if not rule.rrule else _starts(rule, first, length, since, until)
    found = (Occurrence(_utc(each, rule.zone), _utc(each + length, rule.zone)) for each in starts)
    return [each for each in found if each.start < until and each.end > since and each.start < each.end]


def _starts(rule: FreezeRule, first: datetime, length: timedelta, since: datetime, until: datetime) -> list[datetime]:
    zone, slack = ZoneInfo(rule.zone), timedelta(days=1)  # a clock may be moved meanwhile
    low = since.astimezone(zone).replace(tzinfo=None) - length - slack
    high = until.astimezone(zone).replace(tzinfo=None) + slack
    made = _parsed(rule.rrule, first)
    # Without an end dateutil looks through 8,000 years for a 30 February.
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
    """The freeze that ends last of those in force; one that aborts counts before one that holds."""
    found = [
        (rule, each)
        for rule in rules
        if rule.concerns(policy)
        for each in occurrences(rule, now, now + timedelta(microseconds=1))
    ]
    return max(found, key=lambda pair: (pair[0].behaviour == "abort", pair[1].end), default=None)


# Checking


def problems_of(value: Mapping[str, Any], known: Iterable[str], now: datetime) -> list[Problem]:
    """`known`: names of policies."""
    problems = [*_times(value), *_policies(value.get("policies"), set(known))]
    if value.get("behaviour") not in ("hold", "abort"):
        problems.append(_problem("behaviour", value.get("behaviour"), "not one of the allowed values", "hold, abort"))
    return problems or _rule_problems(value, now)


def _problem(path: str, value: object, message: str, allowed: str = "") -> Problem:
    return Problem(path, shown(value), message, allowed)


def _times(value: Mapping[str, Any]) -> list[Problem]:
    problems = [
        _problem(key, value.get(key), "must be a local date and time", "such as 2026-12-24T18:00")
        for key in ("start", "end")
        if not is_local_time(value.get(key))
    ]
    if not is_zone(value.get("zone")):
        problems.append(_problem("zone", value.get("zone"), "must be the name of a time zone", "such as Europe/Berlin"))
    if problems:
        return problems
    if int(value["start"][:4]) < EARLIEST:
        return [_problem("start", value["start"], "is too long ago", f"{EARLIEST} or later")]
    length = datetime.strptime(value["end"], LOCAL) - datetime.strptime(value["start"], LOCAL)
    if not timedelta(0) < length <= LONGEST:
        allowed = f"up to {LONGEST.days} days after the start"
        return [_problem("end", value["end"], "must be after the start", allowed)]
    return []


def _policies(names: object, known: set[str]) -> list[Problem]:
    if not isinstance(names, list):
        return [_problem("policies", names, "must be a list of names", "an empty one means all policies")]
    return [
        _problem(f"policies[{n}]", name, "there is no such policy", ", ".join(sorted(known)))
        for n, name in enumerate(names)
        if not isinstance(name, str) or name not in known
    ]


def _rule_problems(value: Mapping[str, Any], now: datetime) -> list[Problem]:
    text = value.get("rrule") or ""
    fault = rrule_fault(text, value["start"]) if text else ""
    if fault:
        return [_problem("rrule", text, fault, "FREQ=DAILY or longer; " + ", ".join(PARTS[1:]))]
    rule = FreezeRule("", (), value["start"], value["end"], value["zone"], text, "hold")
    if not occurrences(rule, now, now + HORIZON):
        path = "rrule" if text else "end"
        return [_problem(path, text or value["end"], "the freeze does not occur within a year from now")]
    return []


def rrule_fault(text: object, start: str) -> str:
    """What is wrong with a rule; empty when nothing is."""
    if not isinstance(text, str) or not re.fullmatch(r"[A-Z0-9=;,:+\-]{1,200}", text):
        return "must be the parts of an RRULE, such as FREQ=WEEKLY;BYDAY=FR"
    parts = dict(part.partition("=")[::2] for part in text.split(";"))
    if len(parts) != len(text.split(";")):
        return "names a part twice"
    for name in parts:
        if name not in PARTS:
            return f"{name} is not allowed"
    if parts.get("FREQ") not in FREQUENCIES:
        return "FREQ must be " + ", ".join(FREQUENCIES[:-1]) + " or YEARLY"
    return _interval_fault(parts) or _dateutil_fault(text, start)


def _interval_fault(parts: Mapping[str, str]) -> str:
    text = parts.get("INTERVAL", "1")
    return "" if text.isdecimal() and 1 <= int(text) <= INTERVAL_MAX else f"INTERVAL must be 1 to {INTERVAL_MAX}"


def _dateutil_fault(text: str, start: str) -> str:
    try:
        _parsed(text, datetime.strptime(start, LOCAL))
    except Exception as error:  # dateutil raises whatever its own parsing runs into
        return f"cannot be read: {error}"
    return ""
