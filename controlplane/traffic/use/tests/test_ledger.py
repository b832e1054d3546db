"""Each report of a router is in the ledger once, and the GPU time that was held but not charged is idle."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError

from controlplane.traffic.use import ledger, step
from controlplane.traffic.use.ledger import DAY_S, Entry
from controlplane.traffic.use.models import HELD, HeldUntil, Use, UseReport
from fleet.models import Instance, Pool, State
from fleet.redis import connect
from router.contract.redis import redis_keys
from router.contract.redis.codec import encode
from router.contract.redis.use import EXPERIMENTS, HOUR_S, UseCounts, UseHour, UseRow

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = int(NOON.timestamp()) // HOUR_S


def value(requests=1, tokens=10, hour=HOUR, written=1, key="1", name="ci", model="llama"):
    counts = UseCounts(requests=requests, input_tokens=tokens)
    return UseHour(hour=hour, written=written, at=0.0, rows=(UseRow(key, name, "demo", model, counts),))


def reported(life, *values, at=NOON):
    key = redis_keys.use_key(life)
    connect().hset(key, mapping={str(each.hour): encode(each) for each in values})
    connect().zadd(redis_keys.USE, {life: at.timestamp()})


def kept(life):
    return {int(hour): int(written) for hour, written in connect().hgetall(redis_keys.use_kept_key(life)).items()}


def test_reports_of_all_routers_are_added_and_each_counts_once():
    reported("r1.a", value(requests=2, tokens=20))
    reported("r2.b", value(requests=1, tokens=5), value(hour=HOUR + 1))
    for _ in range(2):
        step.gather(NOON)
    reported("r1.a", value(requests=5, tokens=50, written=2, name="search"))
    step.gather(NOON)
    reported("r1.a", value(requests=2, tokens=20))  # Redis was restored from an older copy
    step.gather(NOON)
    first, second = Use.objects.order_by("start")
    assert (first.start, first.requests, first.input_tokens, first.name) == (NOON, 6, 55, "search")
    assert second.start == NOON + timedelta(hours=1)
    assert kept("r2.b") == {HOUR: 1, HOUR + 1: 1}


def test_counts_of_a_router_without_client_errors_are_read_and_later_ones_added():
    older = encode(value(requests=3)).replace(b"[3,0,0,0,10,0,0,0,0,0,0,0,0]", b"[3,0,0,0,10,0,0,0,0,0,0,0]")
    assert b"[3,0,0,0,10,0,0,0,0,0,0,0]" in older
    connect().hset(redis_keys.use_key("r1.a"), mapping={str(HOUR): older})
    connect().zadd(redis_keys.USE, {"r1.a": NOON.timestamp()})
    step.gather(NOON)
    UseReport.objects.update(rows=[["1", "ci", "demo", "llama", [3, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0]]])
    counts = UseCounts(requests=5, input_tokens=10, client_errors=2)
    reported("r1.a", UseHour(hour=HOUR, written=2, at=0.0, rows=(UseRow("1", "ci", "demo", "llama", counts),)))
    step.gather(NOON)
    row = Use.objects.get()
    assert (row.requests, row.client_errors, row.input_tokens) == (5, 2, 10)


def test_a_report_that_two_workers_take_at_once_counts_once(monkeypatch):
    """The second worker takes the report after the first has read the ledger and before it writes."""
    real, others = UseReport.objects.get_or_create, []

    def overtaken(**asked):
        found = real(**asked)
        if not others:
            others.append("takes it first")
            ledger.take("r1.a", value(requests=3, written=2))
        return found

    monkeypatch.setattr(UseReport.objects, "get_or_create", overtaken)
    ledger.take("r1.a", value(requests=3, written=2))
    assert (Use.objects.get().requests, UseReport.objects.get().written) == (3, 2)


def test_nothing_is_confirmed_before_it_is_in_the_database(monkeypatch):
    reported("r1.a", value())
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "add", lambda *_: (_ for _ in ()).throw(OperationalError))
        with pytest.raises(OperationalError):
            step.gather(NOON)
    assert (Use.objects.count(), kept("r1.a")) == (0, {})
    step.gather(NOON)
    assert Use.objects.get().requests == 1


def test_a_value_that_cannot_be_read_does_not_block_others():
    reported("r1.a", value())
    connect().hset(redis_keys.use_key("r1.a"), mapping={"1": '{"schema": 9}', "2": b"\xff"})
    connect().set(redis_keys.use_kept_key("r1.a"), "not a hash")
    step.gather(NOON)
    assert kept("r1.a") == {HOUR: 1}


def test_a_lost_router_is_forgotten_once_all_its_hours_are_stored():
    reported("r1.a", value())
    step.gather(NOON + timedelta(hours=23))
    assert connect().exists(redis_keys.use_key("r1.a"))
    step.gather(NOON + timedelta(hours=25))
    assert connect().keys(f"{redis_keys.USE}*") == []
    assert Use.objects.get().requests == 1


def test_long_names_are_cut_without_losing_a_count():
    rows = tuple(UseRow("1", "n" * 300, "demo", "m" * 200 + end, UseCounts(requests=1)) for end in "xy")
    ledger.take("r1.a", UseHour(hour=HOUR, written=1, at=0.0, rows=rows))
    assert Use.objects.get().requests == 2


def test_old_hours_become_days_without_changing_a_sum():
    for hours in range(30):
        ledger.take("r1.a", value(requests=1, hour=HOUR + hours))
    late = NOON + ledger.HOURS_KEPT + timedelta(days=1)
    ledger.clean_up(late)
    ledger.take("r2.b", value(requests=7))  # from a router that was unreachable
    ledger.clean_up(late)
    ledger.clean_up(late)
    found = {(use.start, use.seconds): use.requests for use in Use.objects.all()}
    midnight = NOON.replace(hour=0)
    assert found == {(midnight, DAY_S): 12 + 7} | {
        (midnight + timedelta(days=1, hours=hours), HOUR_S): 1 for hours in range(18)
    }


def instance(pool, ordinal, since, **fields):
    return Instance.objects.create(
        pool=pool, name=f"{pool.name}-{ordinal}", ordinal=ordinal, started_at=since, **{"state": State.READY, **fields}
    )


def bill():
    held = Use.objects.filter(key=HELD).order_by("start", "pool")
    return [(use.pool, use.start, use.gpu_us / 1e6, use.micro_dollars / 1e6) for use in held]


def test_gpu_time_counts_from_an_instances_start_by_hour_at_its_price():
    pool = Pool.objects.create(name="demo", model="m", kind="sim")
    instance(pool, 0, NOON - timedelta(days=9))
    instance(pool, 1, NOON + timedelta(minutes=70))
    instance(pool, 2, NOON, state=State.STOPPED)
    HeldUntil.objects.create(pool="demo", at=NOON + timedelta(minutes=30))
    for _ in range(2):
        step.count(NOON + timedelta(minutes=90))
    assert bill() == [
        ("demo", NOON, 1800.0, 2.5),
        ("demo", NOON + timedelta(hours=1), 1800.0 + 1200.0, pytest.approx(2.5 + 5 / 3)),
    ]


def test_time_in_which_an_instance_may_not_have_run_is_not_billed():
    new = Pool.objects.create(name="new", model="m", kind="sim")
    instance(new, 0, NOON - timedelta(days=9))
    away = Pool.objects.create(name="away", model="m", kind="sim")
    instance(away, 0, NOON - timedelta(days=9))
    HeldUntil.objects.create(pool="away", at=NOON - timedelta(days=5))
    seen = Pool.objects.create(name="seen", model="m", kind="sim", mode="observe")
    instance(seen, 0, NOON - timedelta(days=9))
    experiment = Pool.objects.create(name="exp-1-1", model="m", kind="sim")
    instance(experiment, 0, NOON - timedelta(seconds=30))
    step.count(NOON)
    sums = {}
    for pool, _, gpu_s, _ in bill():
        sums[pool] = sums.get(pool, 0) + gpu_s
    assert sums == {"new": 60.0, "away": 12 * 3600.0, EXPERIMENTS: 30.0}


def test_an_entry_is_identified_by_all_its_distinguishing_fields():
    for entry in (Entry("1", "a"), Entry("1", "b"), Entry("2", "a"), Entry("1", "a", "m"), Entry("1", "a")):
        ledger.add(NOON, HOUR_S, entry, "", {"requests": 1})
    assert sorted(use.requests for use in Use.objects.all()) == [1, 1, 1, 2]
