"""A share of live state."""

import secrets
from datetime import datetime

from django.db import models
from django.utils import timezone

from controlplane.accounts.models import TOKEN_MARK, Revocable, digest

MARK = f"{TOKEN_MARK}_share"  # masked in logs (router/contract/secret_text.py)


class Share(Revocable, models.Model):
    """Whoever has the token may see the live state of a pool, or of all pools, and nothing else."""

    name = models.CharField(max_length=80)
    pool = models.CharField(max_length=63, blank=True)  # empty: all pools
    prefix = models.CharField(max_length=12, unique=True)  # shown in lists to tell shares apart
    sha256 = models.CharField(max_length=64, unique=True)  # looked up by each view of a wall or badge
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def issue(cls, *, name: str, pool: str, created_by: str, expires_at: datetime | None) -> tuple["Share", str]:
        """The stored row and the token. The token cannot be read again later."""
        prefix = secrets.token_hex(4)
        token = f"{MARK}_{prefix}_{secrets.token_urlsafe(32)}"
        row = cls.objects.create(
            name=name, pool=pool, prefix=prefix, sha256=digest(token), created_by=created_by, expires_at=expires_at
        )
        return row, token
