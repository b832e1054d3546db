"""Starts and freezes keep their local times; approvals count people. Pure rules."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from controlplane.traffic.deliveries.going_live import approvals
from controlplane.traffic.deliveries.timing import freezes, schedules
from controlplane.traffic.deliveries.timing.freezes import (
    HORIZON,
    FreezeRule,
    in_force,
    occurrences,
    problems_of,
    rrule_fault,
)

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)
ZONES = ["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]


def utc(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)


# Starts


@pytest.mark.parametrize(
    ("at", "zone", "instant"),
    [
        ("2026-08-03T03:00", BERLIN, "2026-08-03 01:00"),
        ("2026-01-03T03:00", BERLIN, "2026-01-03 02:00"),
        ("2026-03-29T01:59", BERLIN, "2026-03-29 00:59"),
        ("2026-03-29T02:30", BERLIN, "2026-03-29 01:30"),  # skipped: 03:30 in summer time
        ("2026-03-29T03:00", BERLIN, "2026-03-29 01:00"),
        ("2026-10-25T02:30", BERLIN, "2026-10-25 00:30"),  # repeated: the first, in summer time
        ("2026-10-25T03:00", BERLIN, "2026-10-25 02:00"),
        ("2026-08-03T03:00", "UTC", "2026-08-03 03:00"),
    ],
)
def test_a_local_start_is_converted_to_an_instant(at: str, zone: str, instant: str) -> None:
    assert schedules.instant(at, zone) == utc(instant)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)), st.sampled_from(ZONES))
def test_a_start_in_a_skipped_hour_is_shown_at_a_later_local_time(local: datetime, zone: str) -> None:
    local = local.replace(second=0, microsecond=0)
    shown = schedules.instant(local.strftime(schedules.LOCAL), zone).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert timedelta(0) <= shown - local <= timedelta(hours=1)


def test_a_start_is_missed_after_its_latest_time() -> None:
    assert not schedules.is_missed(NOW, 60, NOW + timedelta(seconds=60))
    assert schedules.is_missed(NOW, 60, NOW + timedelta(seconds=61))


# Freezes


def rule(start: str, end: str, rrule: str = "", zone: str = BERLIN, **more: Any) -> FreezeRule:
    fields = {"name": "f", "policies": (), "behaviour": "hold", **more}
    return FreezeRule(start=start, end=end, zone=zone, rrule=rrule, **fields)


WEEKENDS = rule("2026-01-02T18:00", "2026-01-05T07:00", "FREQ=WEEKLY")


def spans(found: list[freezes.Occurrence]) -> list[str]:
    return [f"{each.start:%m-%d %H:%M} {each.end:%m-%d %H:%M}" for each in found]


def test_a_freeze_without_a_rule_occurs_once() -> None:
    once = rule("2026-08-01T10:00", "2026-08-03T10:00")
    assert spans(occurrences(once, NOW, NOW + HORIZON)) == ["08-01 08:00 08-03 08:00"]
    assert occurrences(once, utc("2026-08-03 08:00"), NOW + HORIZON) == []


def test_a_weekly_freeze_keeps_its_local_times_across_clock_changes() -> None:
    found = occurrences(WEEKENDS, utc("2026-10-20 00:00"), utc("2026-11-03 00:00"))
    assert spans(found) == ["10-23 16:00 10-26 06:00", "10-30 17:00 11-02 06:00"]


def test_a_rule_with_an_end_ends() -> None:
    ending = rule("2026-01-02T18:00", "2026-01-05T07:00", "FREQ=WEEKLY;UNTIL=20260801T000000")
    assert occurrences(ending, utc("2026-08-07 00:00"), NOW + HORIZON) == []
    assert len(occurrences(ending, utc("2026-07-21 00:00"), NOW + HORIZON)) == 2


def test_the_current_freeze_is_found_with_its_end() -> None:
    assert in_force([WEEKENDS], "chat", NOW) is not None  # a Saturday
    assert in_force([WEEKENDS], "chat", NOW)[1].end == utc("2026-08-03 05:00")
    assert in_force([WEEKENDS], "chat", NOW + timedelta(days=2)) is None


def test_a_freeze_begins_at_its_start_and_ends_at_its_end() -> None:
    end = utc("2026-08-03 05:00")
    assert in_force([WEEKENDS], "chat", end - timedelta(seconds=1)) is not None
    assert in_force([WEEKENDS], "chat", end) is None
    assert in_force([WEEKENDS], "chat", utc("2026-08-07 16:00")) is not None
    assert in_force([WEEKENDS], "chat", utc("2026-08-07 15:59")) is None


def test_an_aborting_freeze_takes_precedence_over_one_that_ends_later() -> None:
    short = rule("2026-08-01T13:00", "2026-08-01T15:00", name="short")
    aborts = rule("2026-08-01T13:00", "2026-08-01T14:30", name="aborts", behaviour="abort")
    assert in_force([short, WEEKENDS], "chat", NOW)[0] is WEEKENDS
    assert in_force([short, WEEKENDS, aborts], "chat", NOW)[0] is aborts


def test_a_freeze_applies_to_its_policies_or_to_all() -> None:
    night = rule("2026-08-01T10:00", "2026-08-03T10:00", policies=("night",))
    assert in_force([night], "chat", NOW) is None
    assert in_force([night], "night", NOW) is not None


RULES = ["", "FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,FR", "FREQ=MONTHLY;BYDAY=-1FR", "FREQ=YEARLY;BYMONTH=12;BYMONTHDAY=24"]


@given(
    st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1)),
    st.integers(1, 3 * 24 * 60),
    st.sampled_from(RULES),
    st.sampled_from(ZONES),
)
def test_occurrences_overlap_the_requested_period_and_are_as_long_as_the_first(
    first: datetime, minutes: int, text: str, zone: str
) -> None:
    times = [each.strftime(schedules.LOCAL) for each in (first, first + timedelta(minutes=minutes))]
    found = occurrences(rule(*times, text, zone), NOW, NOW + timedelta(days=60))
    for each in found:
        assert each.start < NOW + timedelta(days=60)
        assert each.end > NOW
        length = (each.end - each.start) - timedelta(minutes=minutes)
        assert abs(length) <= timedelta(hours=25)  # Apia once skipped a day
    assert [each.start for each in found] == sorted({each.start for each in found})


WHOLE: dict[str, Any] = {
    "name": "nights",
    "policies": ["chat"],
    "start": "2026-08-01T18:00",
    "end": "2026-08-03T07:00",
    "zone": BERLIN,
    "rrule": "FREQ=WEEKLY;BYDAY=SA",
    "behaviour": "hold",
}


@pytest.mark.parametrize("text", ["", "FREQ=DAILY", "FREQ=MONTHLY;BYDAY=-1FR", "FREQ=YEARLY;INTERVAL=1;WKST=MO"])
def test_valid_rules_are_accepted(text: str) -> None:
    assert problems_of(convert({**WHOLE, "rrule": text}, FreezeRule), ["chat"], NOW) == []


@pytest.mark.parametrize(
    ("fields", "path", "text"),
    [
        ({"start": "yesterday"}, "start", "2026-12-24T18:00"),
        ({"end": ""}, "end", "must be a local date and time"),
        ({"zone": "Berlin"}, "zone", "time zone"),
        ({"start": "2019-01-01T00:00"}, "start", "2020 or later"),
        ({"end": "2026-08-01T18:00"}, "end", "must be after the start"),
        ({"end": "2026-12-01T18:00"}, "end", "92 days"),
        ({"policies": ["chat", "night"]}, "policies[1]", "there is no such policy"),
        ({"behaviour": "warn"}, "behaviour", "hold, abort"),
        ({"rrule": "every friday"}, "rrule", "must be the parts of an RRULE"),
        ({"rrule": "FREQ=HOURLY"}, "rrule", "FREQ must be DAILY, WEEKLY, MONTHLY or YEARLY"),
        ({"rrule": "BYDAY=FR"}, "rrule", "FREQ must be"),
        ({"rrule": "FREQ=DAILY;BYHOUR=3"}, "rrule", "BYHOUR is not allowed"),
        ({"rrule": "FREQ=DAILY;COUNT=3"}, "rrule", "COUNT is not allowed"),
        ({"rrule": "FREQ=DAILY;FREQ=WEEKLY"}, "rrule", "twice"),
        ({"rrule": "FREQ=DAILY;INTERVAL=0"}, "rrule", "INTERVAL must be 1 to 1000"),
        ({"rrule": "FREQ=DAILY;BYMONTH=13"}, "rrule", "BYMONTH must be 1 to 12"),
        ({"rrule": "FREQ=DAILY;BYMONTHDAY=40"}, "rrule", "BYMONTHDAY must be 1 to 31"),
        ({"rrule": "FREQ=DAILY;BYMONTH=2,4;BYMONTHDAY=31"}, "rrule", "none of its months has such a day"),
        ({"rrule": "FREQ=DAILY;BYSETPOS=3"}, "rrule", "BYSETPOS is not allowed with FREQ=DAILY"),
        ({"rrule": "FREQ=WEEKLY;BYMONTHDAY=1"}, "rrule", "BYMONTHDAY is not allowed with FREQ=WEEKLY"),
        ({"rrule": "FREQ=MONTHLY;BYWEEKNO=3"}, "rrule", "BYWEEKNO is not allowed with FREQ=MONTHLY"),
        ({"rrule": "FREQ=DAILY;UNTIL=20270101T000000Z"}, "rrule", "cannot be read"),
        ({"rrule": "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29"}, "rrule", "does not occur within a year"),
        ({"rrule": "", "start": "2026-01-01T18:00", "end": "2026-01-02T18:00"}, "end", "does not occur within a year"),
    ],
)
def test_an_invalid_freeze_is_refused_with_its_path(fields: dict[str, Any], path: str, text: str) -> None:
    (found,) = problems_of(convert({**WHOLE, **fields}, FreezeRule), ["chat"], NOW)
    assert (found.path, text in found.text) == (path, True)


@given(st.text(alphabet="ABDEFILMNOQRTUWXY=;,0123456789+-", max_size=40).map(lambda text: f"FREQ=DAILY;{text}"))
def test_any_text_as_a_rule_is_accepted_or_refused_quickly(text: str) -> None:
    if not rrule_fault(text, "2026-01-01T00:00"):
        occurrences(rule("2026-01-01T00:00", "2026-01-01T01:00", text), NOW, NOW + HORIZON)


# Approvals

PEOPLE = st.sampled_from(["ada", "olga", "otto", "vera"])


@given(PEOPLE, PEOPLE, st.lists(PEOPLE), st.lists(PEOPLE))
def test_proposers_authors_and_earlier_approvers_cannot_approve(
    person: str, proposer: str, drafters: list[str], approvers: list[str]
) -> None:
    refused = approvals.refusal(person, proposer, drafters, approvers)
    assert bool(refused) == (person in {proposer, *drafters, *approvers})
    assert not refused or person in refused


@given(st.lists(st.tuples(PEOPLE, st.sampled_from(["this", "that"]))), st.integers(0, 4))
def test_enough_different_people_must_approve_one_digest(given_: list[tuple[str, str]], needed: int) -> None:
    assert approvals.complete(given_, "this", needed) == (len({p for p, what in given_ if what == "this"}) >= needed)


@pytest.mark.parametrize("other", [("b", "p", 1, "l"), ("d", "q", 1, "l"), ("d", "p", 2, "l"), ("d", "p", 1, "m")])
def test_an_approval_covers_one_document_one_plan_and_one_base(other: tuple[str, str, int, str]) -> None:
    assert approvals.digest("d", "p", 1, "l") != approvals.digest(*other)
