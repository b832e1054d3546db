"""Spending from budgets: Redis and the database back each other up. Spending is a counter for each incarnation of a
router that only grows, so the two are merged by taking the greater: nothing is lost while either is unreachable, and
nothing counts twice. Grants to routers come only from a key in Redis that this step has opened
(router/sync/token_bucket_store.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Sum

from controlplane.people.notices.services import notify
from controlplane.traffic.keys.models import Budget, published
from controlplane.traffic.use.ledger import start_of
from controlplane.traffic.use.models import HELD, BudgetSpending, Use
from fleet.redis import connect
from router.contract.redis import redis_keys
from router.contract.redis.budgets import EVER, LARGEST, Period
from router.contract.redis.use import HOUR_S

BEFORE = "(before)"  # replaces an incarnation: the key's use before the budget was created
REPORTED_S = 10  # time for live routers to write their spending to an empty Redis again
LATE_S = 3600  # time for which requests of an ended period may still run
KEPT = timedelta(days=100)  # time for which the database keeps the spending

# ARGV: seconds until routers get grants, if the hash is new; its expiry; then each incarnation of a router with its
# spending. Returns the whole hash.
_OPEN = """
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then redis.call('DEL', KEYS[1]) end
for i = 3, #ARGV, 2 do
  local had = tonumber(redis.call('HGET', KEYS[1], 's:' .. ARGV[i]) or -1) or -1
  if had < tonumber(ARGV[i + 1]) then redis.call('HSET', KEYS[1], 's:' .. ARGV[i], ARGV[i + 1]) end
end
if not tonumber(redis.call('HGET', KEYS[1], 'since') or '') then
  redis.call('HSET', KEYS[1], 'since', redis.call('TIME')[1] + ARGV[1])
end
redis.call('EXPIREAT', KEYS[1], ARGV[2])
return redis.call('HGETALL', KEYS[1])
"""


@dataclass(frozen=True, slots=True)
class BudgetNow:
    row: Budget
    period: Period
    spent: int

    @property
    def ratio(self) -> float:
        return self.spent / self.row.limit

    @property
    def percent(self) -> float:
        return self.ratio * 100

    @property
    def spent_text(self) -> str:
        return self.row.shown(self.spent)

    @property
    def limit_text(self) -> str:
        return self.row.shown(self.row.limit)

    @property
    def ends(self) -> datetime | None:
        return None if self.period is EVER else datetime.fromtimestamp(self.period.ends, UTC)


def budgets_now(now: float, rows: Iterable[Budget] | None = None) -> list[BudgetNow]:
    """Return budgets of pools and of keys that are not revoked, with their spending in the database, which is about 10
    s behind."""
    found = Budget.objects.filter(key__revoked_at=None).select_related("key") if rows is None else rows
    periods = [(row, published(row).period(now)) for row in found]
    names = {period.name for _, period in periods}
    sums = BudgetSpending.objects.filter(period__in=names).values_list("budget", "period").annotate(Sum("spent"))
    spent = {(budget, period): total for budget, period, total in sums.order_by()}
    return [BudgetNow(row, period, spent.get((row.pk, period.name), 0)) for row, period in periods]


def record_before(row: Budget, now: datetime) -> None:
    """Count earlier use in the current period. Call this inside the transaction that creates the budget."""
    period = published(row).period(now.timestamp())
    owned = Use.objects.filter(key=str(row.key_id)) if row.key_id else Use.objects.filter(pool=row.pool)
    used = (
        owned.exclude(key=HELD)
        .filter(start__gte=start_of(int(period.begins) // HOUR_S))
        .aggregate(
            requests=Sum(F("requests") - F("refused") - F("client_errors"), default=0),
            tokens=Sum("input_tokens", default=0) + Sum("output_tokens", default=0),
            dollars=Sum("micro_dollars", default=0),
        )
    )
    spent = min(int(used[row.unit] or 0), LARGEST)
    BudgetSpending.objects.create(budget=row, period=period.name, life=BEFORE, spent=spent)


def step(now: datetime) -> None:
    for row in Budget.objects.filter(key__revoked_at=None).select_related("key"):
        exchange(row, now)


def exchange(row: Budget, now: datetime) -> None:
    """Merge the spending in Redis and in the database for each current period, and send the notices that are due."""
    period_of, at = published(row).period, now.timestamp()
    present = period_of(at)
    for period in dict.fromkeys((period_of(at - LATE_S), present, period_of(present.ends))):
        found = _open(row, period, at)
        _keep(row, period, found)
        if period == present:
            _tell(row, period, sum(_of(found, "r:").values()))


def _open(row: Budget, period: Period, at: float) -> Mapping[str, int]:
    known = dict(BudgetSpending.objects.filter(budget=row, period=period.name).values_list("life", "spent"))
    wait_s = REPORTED_S if known.keys() - {BEFORE} else 0  # time for routers to write known spending again
    words = [word for life, spent in known.items() for word in (life, spent)]
    key = redis_keys.budget_key(str(row.pk), period.name)
    answer: Any = connect().eval(_OPEN, 1, key, wait_s, period.kept_until(at), *words)
    names = (raw.decode("utf-8", "replace") for raw in answer[::2])
    return {name: int(raw) for name, raw in zip(names, answer[1::2], strict=True) if raw.isdigit()}


def _of(found: Mapping[str, int], kind: str) -> dict[str, int]:
    """Return the spending by incarnation."""
    return {name.removeprefix(kind)[:200]: value for name, value in found.items() if name.startswith(kind)}


@transaction.atomic
def _keep(row: Budget, period: Period, found: Mapping[str, int]) -> None:
    known = dict(BudgetSpending.objects.filter(budget=row, period=period.name).values_list("life", "spent"))
    for life, reported in _of(found, "s:").items():
        spent = min(reported, LARGEST)
        if spent > known.get(life, -1):
            BudgetSpending.objects.update_or_create(
                budget=row, period=period.name, life=life, defaults={"spent": spent}
            )


@transaction.atomic
def _tell(row: Budget, period: Period, refused: int) -> None:
    """Send the notices that are due, each once in a period."""
    spent = BudgetSpending.objects.filter(budget=row, period=period.name).aggregate(sum=Sum("spent", default=0))["sum"]
    warn = spent >= row.warn_at * row.limit
    exceeded = spent >= row.limit or (warn and refused > 0)
    about, owner = row.owner, {"pool": row.pool} if row.pool else {"key": row.key_id}
    facts = {**owner, "unit": row.unit, "per": row.per, "spent": spent, "limit": row.limit}
    of = f"{row.shown(spent)} of {row.shown(row.limit)} in {period.name}"
    if exceeded and _first(row, "exceeded", period):
        then = ": routers refuse what goes beyond" if row.refuse else ""
        notify("budget.exceeded", about, f"{about} has spent {of}{then}", facts)
    elif warn and not exceeded and _first(row, "warned", period):
        notify("budget.warned", about, f"{about} has spent {of}", facts)


def _first(row: Budget, field: str, period: Period) -> bool:
    return bool(Budget.objects.filter(pk=row.pk).exclude(**{field: period.name}).update(**{field: period.name}))


def clean_up(now: datetime) -> None:
    BudgetSpending.objects.filter(period__lt=f"{now - KEPT:%Y-%m}").delete()
