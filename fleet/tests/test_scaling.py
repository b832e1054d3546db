"""The number of instances that a pool should have: declared, scheduled or set by the autoscaler."""

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.kinds.serving import ordinals_of, role_of
from fleet.models import Pool
from fleet.plan.scaling import Scale, active, current_prefills, current_scale
from fleet.snapshot import scale_of
from fleet.spec.sections import DAYS, Autoscale, Schedule, ScheduleWindow, autoscale_of, schedule_of

WORK = {"days": ["mon", "tue", "wed", "thu", "fri"], "from": "08:00", "to": "18:00", "replicas": 6}
NIGHT = {"days": ["sat"], "from": "22:00", "to": "06:00", "replicas": 1}


def schedule(*windows: dict[str, Any], timezone: str = "UTC") -> Schedule:
    return schedule_of({"timezone": timezone, "windows": list(windows)})


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("now", "replicas"),
    [
        ("2026-11-20T07:59:59", None),  # a Friday
        ("2026-11-20T08:00:00", 6),
        ("2026-11-20T17:59:59", 6),
        ("2026-11-20T18:00:00", None),
        ("2026-11-21T12:00:00", None),
        ("2026-11-21T22:00:00", 1),
        ("2026-11-22T05:59:59", 1),  # began on Saturday
        ("2026-11-22T06:00:00", None),
        ("2026-11-22T22:30:00", None),
    ],
)
def test_a_window_includes_its_beginning_but_not_its_end(now: str, replicas: int | None) -> None:
    found = active(schedule(WORK, NIGHT), at(now))
    assert (found.replicas if found else None) == replicas


def test_times_are_in_the_time_zone_even_when_its_clocks_change() -> None:
    berlin = schedule(WORK, timezone="Europe/Berlin")
    assert active(berlin, at("2026-11-20T07:30:00")) is not None  # 8:30 in winter
    assert active(berlin, at("2026-07-17T06:30:00")) is not None  # 8:30 in summer
    assert active(berlin, at("2026-07-17T16:30:00")) is None


@given(
    st.lists(st.sampled_from(DAYS), unique=True),
    st.integers(0, 1439),
    st.integers(0, 1440),
    st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2027, 1, 1), timezones=st.just(dt.UTC)),
)
def test_a_window_is_open_if_and_only_if_it_began_on_one_of_its_days(
    days: list[str], begins: int, ends: int, now: dt.datetime
) -> None:
    lasts = (ends - begins) if ends > begins else ends - begins + 1440
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = [midnight + dt.timedelta(days=back, minutes=begins) for back in (0, -1)]
    expected = any(
        DAYS[start.weekday()] in days and start <= now < start + dt.timedelta(minutes=lasts) for start in starts
    )
    assert (active(Schedule("UTC", (ScheduleWindow(tuple(days), begins, ends, 3),)), now) is not None) == expected


def scale(scheduled: int | None, scaled: int | None, **autoscale: Any) -> Scale:
    window = {"from": "00:00", "to": "24:00", "replicas": scheduled}
    spec: Autoscale | None = autoscale_of(autoscale) if autoscale else None
    return current_scale(
        4, schedule(*([window] if scheduled is not None else [])), spec, scaled, at("2026-11-20T12:00:00")
    )


def test_the_schedule_replaces_the_declared_number_and_is_named_as_the_reason() -> None:
    assert scale(None, None) == Scale(4)
    assert scale(7, None) == Scale(7, "scheduled daily 00:00–24:00 UTC")


def test_the_autoscaler_counts_only_in_automatic_mode() -> None:
    assert scale(None, 9, mode="advisory", max=10).replicas == 4
    assert scale(None, 9, mode="automatic", max=10) == Scale(9, "set by the autoscaler")
    assert scale(None, None, mode="automatic", max=10).replicas == 4


def test_the_autoscaler_stays_within_its_limits_and_above_the_schedule() -> None:
    assert scale(None, 99, mode="automatic", max=10).replicas == 10
    assert scale(None, 1, mode="automatic", min=2, max=10).replicas == 2
    assert scale(6, 2, mode="automatic", max=10).replicas == 6
    assert scale(60, 2, mode="automatic", max=10).replicas == 10


@pytest.mark.parametrize(
    ("scaled", "replicas", "mode", "prefills"),
    [(None, 6, "automatic", 2), (3, 6, "advisory", 2), (3, 6, "automatic", 3), (1, 6, "automatic", 1),
     (9, 9, "automatic", 4), (4, 4, "automatic", 2), (4, 1, "automatic", 1), (4, 0, "automatic", 0)],
)  # fmt: skip
def test_the_autoscaler_sets_the_number_of_prefill_instances_and_the_minimum_that_decode(
    scaled: int | None, replicas: int, mode: str, prefills: int
) -> None:
    spec = autoscale_of({"mode": mode, "max": 9, "prefill_max": 4, "decode_min": 2})
    assert current_prefills(2, spec, scaled, replicas) == prefills


@pytest.mark.parametrize(
    ("replicas", "scaled", "shape"),
    [(3, None, (3, 1)), (3, (5, 3), (5, 3)), (3, (5, 1), (5, 1)), (9, None, (6, 1))],
)
def test_cores_of_neuron_limit_the_decoders_beside_any_number_that_prefill(
    replicas: int, scaled: tuple[int, int] | None, shape: tuple[int, int]
) -> None:
    """With 44 cores, 3 × 4 may prefill and 4 × 8 decode; beside one prefill instance there is room for 5 decoders."""
    engine = {"prefill_instances": 1, "etcd": "h:1", "prefill_tensor_parallel": 4, "cores": [str(n) for n in range(44)]}
    scaling = {"mode": "automatic", "max": 5, "prefill_max": 3, "target_queue": 4}
    sum_of_both, prefills = scaled or (None, None)
    pool = Pool(kind="neuron", replicas=replicas, engine=engine, autoscale=scaling, scaled=sum_of_both,
                scaled_prefills=prefills)  # fmt: skip
    found = scale_of(pool, at("2026-11-20T08:00:00"))
    assert (found.replicas, found.prefills) == shape


@pytest.mark.parametrize("prefills", range(5))
def test_no_instance_changes_its_side_when_sides_are_scaled(prefills: int) -> None:
    ordinals = ordinals_of(2, prefills, prefills + 3)
    roles = [role_of("both", 2, ordinal) for ordinal in ordinals]
    assert (roles.count("prefill"), roles.count("decode")) == (prefills, 3)
    assert {2, 3, 4} <= ordinals, "the decoders keep their numbers"
    assert sorted(ordinals_of(2, 2, 5)) == [0, 1, 2, 3, 4], "as declared"
