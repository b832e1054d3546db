"""API keys of the data plane: who may use the routers, which pools, how much. Routers hear of them through Redis."""

import secrets
from datetime import datetime

from django.db import models
from django.db.models import Q
from django.utils import timezone

from controlplane.accounts.models import digest
from router.contract.api_keys import MARK

ALL_POOLS = "*"


class ApiKey(models.Model):
    name = models.CharField(max_length=80)  # what receipts and metrics call it
    prefix = models.CharField(max_length=12, unique=True)  # shown in lists, so that a key can be told from another
    sha256 = models.CharField(max_length=64, unique=True)  # of the secret, which is nowhere
    pools = models.JSONField(default=list)  # none: every pool
    requests_per_min = models.PositiveIntegerField(null=True, blank=True)  # None: no limit
    tokens_per_min = models.PositiveIntegerField(null=True, blank=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            # Two good keys of one name could not be told apart in receipts and metrics.
            models.UniqueConstraint(fields=["name"], condition=Q(revoked_at=None), name="one_good_key_of_a_name"),
        ]

    def __str__(self) -> str:
        return self.name

    def is_usable(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def status(self) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "usable" if self.is_usable(timezone.now()) else "expired"

    @property
    def begins_with(self) -> str:
        return f"{MARK.decode()}{self.prefix}-"


class KeyedPool(models.Model):
    """A pool that is served to holders of a key only."""

    pool = models.CharField(max_length=100, unique=True)  # or ALL_POOLS

    def __str__(self) -> str:
        return self.pool


def new_secret() -> tuple[str, str, str]:
    """(prefix, secret, its SHA-256). 256 random bits: there is nothing to guess, so the hash may be fast."""
    prefix = secrets.token_hex(4)
    secret = f"{MARK.decode()}{prefix}-{secrets.token_urlsafe(32)}"
    return prefix, secret, digest(secret)
