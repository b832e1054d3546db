"""API keys of the data plane: which client may use which pools, and how much. Routers read them from Redis."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from controlplane.people.accounts.models import Revocable
from router.contract.redis.api_keys import MARK
from router.contract.redis.budgets import PublishedBudget
from router.contract.values.reading import read_value

ALL_POOLS = "*"


class ApiKey(Revocable):
    """An API key; its name appears in receipts and metrics."""

    mark = MARK.decode().removesuffix("-")
    separator = "-"

    pools = models.JSONField(default=list)  # empty for every pool
    requests_per_min = models.PositiveIntegerField(null=True, blank=True)  # None for no limit
    tokens_per_min = models.PositiveIntegerField(null=True, blank=True)
    priority = models.SmallIntegerField(default=0, db_default=0)  # band of its requests that do not request one
    priority_max = models.SmallIntegerField(default=0, db_default=0)  # highest band that its requests may ask for
    created_by = models.CharField(max_length=200)
    last_used_at = models.DateTimeField(null=True, blank=True)
    # Model names that its requests may use; empty for every name. The field is last, because it hides the module
    # `models`.
    models = models.JSONField(default=list, db_default=[])

    class Meta(Revocable.Meta):
        constraints = [
            # Two valid keys with the same name would be indistinguishable in receipts and metrics.
            models.UniqueConstraint(fields=["name"], condition=Q(revoked_at=None), name="one_good_key_of_a_name"),
        ]

    @property
    def begins_with(self) -> str:
        return f"{MARK.decode()}{self.prefix}-"


class BudgetUnit(models.TextChoices):
    TOKENS = "tokens"
    DOLLARS = "dollars"
    REQUESTS = "requests"


class BudgetPer(models.TextChoices):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    EVER = "ever"


class Budget(models.Model):
    """The amount that a key or a pool may spend in each hour, day, week or month of the calendar, or in all.
    controlplane/traffic/use records the spending.
    """

    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="budgets", null=True, blank=True)
    # Set instead of a key: the budget covers everything that the pool serves
    pool = models.CharField(max_length=63, blank=True, default="")
    unit = models.CharField(max_length=8, choices=BudgetUnit)
    per = models.CharField(max_length=8, choices=BudgetPer)
    limit = models.BigIntegerField()  # tokens, micro-dollars or requests
    warn_at = models.FloatField(default=0.8)  # share of the limit, 0–1
    refuse = models.BooleanField(default=True)  # True to refuse requests beyond the limit; False only to report them
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    # Periods for which a notice was sent
    warned = models.CharField(max_length=16, blank=True)
    exceeded = models.CharField(max_length=16, blank=True)

    class Meta:
        ordering = ["pool", "key__name", "key", "unit", "per"]
        constraints = [
            models.UniqueConstraint(fields=["key", "unit", "per"], name="one_budget_of_a_kind"),
            models.UniqueConstraint(
                fields=["pool", "unit", "per"], condition=Q(key=None), name="one_budget_of_a_kind_of_a_pool"
            ),
            models.CheckConstraint(
                condition=(Q(key=None) & ~Q(pool="")) | (Q(key__isnull=False) & Q(pool="")),
                name="budget_of_a_key_or_a_pool",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.shown(self.limit)} {published(self).each} of {self.owner}"

    @property
    def owner(self) -> str:
        return f"API key {self.key.name}" if self.key is not None else f"pool {self.pool}"

    def shown(self, amount: int) -> str:
        return published(self).text(amount)


def published(row: Budget) -> PublishedBudget:
    terms = {"id": str(row.pk), "unit": row.unit, "per": row.per, "limit": row.limit, "refuse": row.refuse}
    return read_value(terms | {"zone": settings.BUDGET_TIME_ZONE}, PublishedBudget)


class KeyedPool(models.Model):
    """A pool that requires an API key."""

    pool = models.CharField(max_length=100, unique=True)  # name of a pool, or ALL_POOLS

    def __str__(self) -> str:
        return self.pool
