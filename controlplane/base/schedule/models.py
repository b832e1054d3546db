"""The lease that decides which control worker runs the steps."""

from django.db import models


class Lease(models.Model):
    """A lease by name. Whoever changes the token holds the lease until someone else changes it."""

    name = models.CharField(max_length=80, unique=True)
    token = models.PositiveBigIntegerField(default=0)  # grows with each holder
    beat = models.PositiveBigIntegerField(default=0)  # grows while the holder renews the lease
    holder = models.CharField(max_length=200, blank=True)  # name of the worker; empty once it was given back
    process = models.CharField(max_length=200, blank=True)  # fleet/jobs/process_identity.py
    taken_at = models.DateTimeField(null=True, blank=True)  # for display; no decision compares the clocks of hosts

    class Meta:
        # With the token in a key, a renewal in PostgreSQL does not wait for a transaction that has checked the token
        # (FOR KEY SHARE), but a takeover does.
        constraints = [models.UniqueConstraint(fields=("name", "token"), name="lease_token")]

    def __str__(self) -> str:
        return f"{self.name} {self.token}: {self.holder or 'nobody'}"
