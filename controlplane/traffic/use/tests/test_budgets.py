"""Spending survives a loss of Redis and counts once; a nearly spent budget is announced once."""

from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.db import OperationalError

from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import Actor
from controlplane.people.notices.models import Channel, Notice
from controlplane.traffic.keys import publishing
from controlplane.traffic.keys.models import ApiKey, Budget
from controlplane.traffic.use import budgets, ledger, spending
from controlplane.traffic.use import step as ledger_step
from controlplane.traffic.use.budgets import BudgetTerms
from controlplane.traffic.use.ledger import Entry
from controlplane.traffic.use.models import BudgetSpending, Use
from fleet.redis import connect
from router.contract.redis import redis_keys
from router.contract.redis.budgets import period_of
from router.contract.redis.codec import encode
from router.contract.redis.use import HOUR_S, UseCounts, UseHour, UseRow

pytestmark = pytest.mark.django_db
ADA = Actor("user", "ada", is_admin=True)
NOW = datetime.now(UTC)
TODAY = f"{NOW:%Y-%m-%d}"


@pytest.fixture
def key(db):
    return ApiKey.objects.create(name="ci", prefix="p", sha256="a" * 64, created_by="ada")


@pytest.fixture
def budget(key, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        return budgets.create_budget(key, "tokens", "day", BudgetTerms(limit=1_000), ADA)


def held(budget, period=TODAY):
    return connect().hgetall(redis_keys.budget_key(str(budget.pk), period))


def tell(budget, **fields):
    connect().hset(redis_keys.budget_key(str(budget.pk), TODAY), mapping=fields)


def step(later=timedelta(0)):
    spending.step(NOW + later)


def used(key, requests, written=1):
    counts = UseCounts(requests=requests, input_tokens=100 * requests)
    hour = int(NOW.timestamp()) // HOUR_S
    value = UseHour(hour=hour, written=written, at=0.0, rows=(UseRow(str(key.pk), "ci", "demo", "llama", counts),))
    connect().hset(redis_keys.use_key("r1.a"), mapping={str(hour): encode(value)})
    connect().zadd(redis_keys.USE, {"r1.a": NOW.timestamp()})


@pytest.mark.parametrize(("unit", "limit"), [("requests", 5), ("tokens", 500)])
def test_a_budget_that_is_deleted_and_created_again_begins_with_the_spending_in_redis(
    key, django_capture_on_commit_callbacks, unit, limit
):
    terms = BudgetTerms(limit=limit)
    with django_capture_on_commit_callbacks(execute=True):
        first = budgets.create_budget(key, unit, "day", terms, ADA)
    used(key, 5)  # not in the ledger yet
    with django_capture_on_commit_callbacks(execute=True):
        budgets.delete_budget(first, ADA)
        again = budgets.create_budget(key, unit, "day", terms, ADA)
    assert int(held(again)[b"s:(before)"]) == limit
    ledger_step.gather(NOW)
    assert Use.objects.get().requests == 5


def test_a_budget_created_while_redis_is_unreachable_begins_with_the_ledger(key, monkeypatch, caplog):
    def away(now):
        raise redis.ConnectionError("away")

    monkeypatch.setattr(ledger_step, "gather", away)
    assert budgets.create_budget(key, "tokens", "day", BudgetTerms(limit=5), ADA).pk


def test_a_new_budget_is_open_at_once_and_the_next_period_before_it_begins(budget):
    for period in (TODAY, f"{NOW + timedelta(days=1):%Y-%m-%d}"):
        assert float(held(budget, period)[b"since"]) <= connect().time()[0]
    assert connect().expiretime(redis_keys.budget_key(str(budget.pk), TODAY)) > NOW.timestamp() + 86_400
    (published,) = publishing.valid_keys().keys
    assert (published.budgets[0].id, published.budgets[0].limit) == (str(budget.pk), 1_000)


def test_budgets_of_every_unit_and_period_are_published(key, budget):
    now = datetime.now(UTC)
    ledger_hour = now.replace(minute=0, second=0, microsecond=0)
    Use.objects.create(key=str(key.pk), start=ledger_hour, seconds=HOUR_S, requests=12, refused=2, client_errors=3)
    hourly = budgets.create_budget(key, "requests", "hour", BudgetTerms(limit=100), ADA)
    weekly = budgets.create_budget(key, "dollars", "week", BudgetTerms(limit=0.5), ADA)
    (published,) = publishing.valid_keys().keys
    assert [(one.id, one.per) for one in published.budgets[1:]] == [(str(hourly.pk), "hour"), (str(weekly.pk), "week")]
    assert BudgetSpending.objects.get(budget=hourly).spent == 7
    assert str(hourly) == "100 requests an hour of API key ci"
    spending.exchange(hourly, now)
    assert spending.budgets_now(now.timestamp(), [hourly])[0].spent == 7


def test_earlier_use_of_the_key_in_the_period_counts(key):
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    counts = {"input_tokens": 70, "cached_tokens": 60, "output_tokens": 30, "micro_dollars": 1_250_000}
    ledger.add(hour, HOUR_S, Entry(str(key.pk), "chat"), "ci", counts)
    ledger.add(hour - timedelta(days=40), HOUR_S, Entry(str(key.pk), "chat"), "ci", counts)
    ledger.add(hour, HOUR_S, Entry("999", "chat"), "other", counts)
    for unit, per in (("tokens", "day"), ("dollars", "month")):
        budgets.create_budget(key, unit, per, BudgetTerms(limit=2), ADA)
    found = {one.row.unit: (one.spent_text, round(one.ratio, 3)) for one in spending.budgets_now(NOW.timestamp())}
    assert found == {"tokens": ("100 tokens", 50.0), "dollars": ("$1.25", 0.625)}


def test_spending_survives_redis_and_is_restored_before_an_empty_one_grants_again(budget):
    tell(budget, **{"s:r1.a": 300, "s:r2.b": 200, "h:r1.a": 50})
    step()
    connect().flushall()
    tell(budget, **{"s:r1.a": 310})  # already reported by a live router
    step()
    found = held(budget)
    assert (found[b"s:r1.a"], found[b"s:r2.b"]) == (b"310", b"200")
    assert connect().time()[0] < float(found[b"since"]) <= connect().time()[0] + spending.REPORTED_S
    (now,) = spending.budgets_now(NOW.timestamp())
    assert now.spent == 510
    since = found[b"since"]
    step()
    assert held(budget)[b"since"] == since


def test_spending_never_shrinks_whatever_redis_was_restored_from(budget):
    tell(budget, **{"s:r1.a": 300})
    step()
    connect().delete(redis_keys.budget_key(str(budget.pk), TODAY))
    connect().set(redis_keys.budget_key(str(budget.pk), TODAY), "not a hash")
    step()
    tell(budget, **{"s:r1.a": 100, "s:r9.x": "many", "since": "soon"})
    step()
    assert held(budget)[b"s:r1.a"] == b"300"
    assert float(held(budget)[b"since"])
    assert set(BudgetSpending.objects.values_list("life", "spent").filter(period=TODAY)) == {
        (spending.BEFORE, 0),
        ("r1.a", 300),
    }


def test_requests_that_end_after_midnight_count_in_the_day_in_which_they_began(budget):
    midnight = period_of("day", NOW.timestamp()).ends
    tell(budget, **{"s:r1.a": 300})
    spending.step(datetime.fromtimestamp(midnight + 60, UTC))
    assert BudgetSpending.objects.get(life="r1.a").period == TODAY
    tell(budget, **{"s:r1.a": 900})
    spending.step(datetime.fromtimestamp(midnight + 2 * 3600, UTC))
    assert BudgetSpending.objects.get(life="r1.a").spent == 300
    spending.clean_up(NOW + timedelta(days=140))
    assert not BudgetSpending.objects.exists()


@pytest.mark.parametrize("refuse", [True, False])
def test_nearing_and_reaching_the_limit_are_each_reported_once_in_a_period(budget, refuse):
    budgets.change_budget(budget, {"limit": 1_000, "refuse": refuse}, ADA)
    Channel.objects.create(name="ops", kind="webhook", url="https://ops.test/", events=["budget.*"], created_by="ada")
    for told, expected in (
        ({"s:r1.a": 799, "r:r1.a": 3}, []),  # a request was too large for the rest
        ({"s:r1.a": 800, "r:r1.a": 0}, ["budget.warned"]),
        ({"s:r1.a": 990, "r:r1.a": 4}, ["budget.warned", "budget.exceeded"]),
        ({"s:r1.a": 1_200}, ["budget.warned", "budget.exceeded"]),
    ):
        tell(budget, **told)
        for _ in range(2):
            step()
        assert list(Notice.objects.order_by("pk").values_list("event", flat=True)) == expected
    last = Notice.objects.order_by("pk").last()
    assert last.text.startswith("API key ci has spent 990 tokens of 1,000 tokens")
    assert ("refuse" in last.text) == refuse


def test_an_unreachable_database_loses_nothing(budget, monkeypatch):
    tell(budget, **{"s:r1.a": 300})
    with monkeypatch.context() as patch:
        patch.setattr(BudgetSpending.objects, "update_or_create", lambda **_: (_ for _ in ()).throw(OperationalError))
        with pytest.raises(OperationalError):
            step()
    step()
    assert BudgetSpending.objects.get(life="r1.a").spent == 300


def test_every_change_is_in_the_audit_log_and_published(key, budget, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        budgets.change_budget(budget, {"limit": 2_000, "warn_at": 0.5, "refuse": False}, ADA)
    assert publishing.valid_keys().keys[0].budgets[0].limit == 2_000
    budgets.delete_budget(budget, ADA)
    assert publishing.valid_keys().keys[0].budgets == ()
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "subject")) == [
        ("budget.create", "API key ci"),
        ("budget.change", "API key ci"),
        ("budget.delete", "API key ci"),
    ]
    assert not Budget.objects.exists()
