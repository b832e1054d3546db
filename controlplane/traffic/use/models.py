"""The ledger of what keys consumed, and each router's share of it."""

from django.db import models
from django.utils import timezone

from controlplane.traffic.keys.models import Budget
from router.contract.redis.use import UseCounts

HELD = "(held)"  # replaces a key's id: GPU time held by the pool's instances, used or not
COUNTS = UseCounts.__struct_fields__  # columns of Use


class Use(models.Model):
    """The use of one key in one pool with one model, over one hour, or over one day for old use. Times are UTC."""

    start = models.DateTimeField()
    seconds = models.PositiveIntegerField()  # length of the period
    key = models.CharField(max_length=100)  # id of the API key; empty without a key
    name = models.CharField(max_length=100)  # name of the key; the name of a revoked key can be reused
    pool = models.CharField(max_length=100)
    model = models.CharField(max_length=200)
    requests = models.BigIntegerField(default=0)
    refused = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    cancelled = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    estimated = models.BigIntegerField(default=0)
    gpu_us = models.BigIntegerField(default=0)
    micro_dollars = models.BigIntegerField(default=0)
    audio_ms = models.BigIntegerField(default=0, db_default=0)
    images = models.BigIntegerField(default=0, db_default=0)
    client_errors = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["start", "seconds", "key", "pool", "model"], name="one_use_of_a_time"),
        ]

    def __str__(self) -> str:
        return f"{self.name or 'no key'} in {self.pool} from {self.start:%Y-%m-%d %H:%M}"


class UseReport(models.Model):
    """One router's contribution to an hour of the ledger, to which a later report adds the difference."""

    life = models.CharField(max_length=200)  # <router>.<life>
    hour = models.BigIntegerField()  # Unix time / 3600
    written = models.BigIntegerField()  # number of the router's writes
    rows = models.JSONField()  # as reported
    at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["life", "hour"], name="one_report_of_an_hour")]

    def __str__(self) -> str:
        return f"{self.life}, hour {self.hour}"


class BudgetSpending(models.Model):
    """The known spending of one router's incarnation from a budget in a period; the amount only grows."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="spending")
    period = models.CharField(max_length=16)  # 2026-11-26T09, 2026-11-26, 2026-W48 or 2026-11
    life = models.CharField(max_length=200)
    spent = models.BigIntegerField(default=0)  # tokens, micro-dollars or requests

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["budget", "period", "life"], name="one_spending_of_a_life"),
        ]

    def __str__(self) -> str:
        return f"{self.life} of {self.budget} in {self.period}"


class HeldUntil(models.Model):
    """The time up to which the ledger includes the GPU time of a pool's instances."""

    pool = models.CharField(max_length=100, unique=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return self.pool
