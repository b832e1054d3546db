"""Stored answers to requests with an Idempotency-Key."""

from django.db import models
from django.utils import timezone


class IdempotentAnswer(models.Model):
    """The answer to a POST that carried an Idempotency-Key; `status` is 0 until the answer exists."""

    owner = models.CharField(max_length=80)  # "user:7" or "token:3"; owners cannot see each other's keys
    key = models.CharField(max_length=200)
    request_sha256 = models.CharField(max_length=64)  # digest of method, path and body
    status = models.PositiveSmallIntegerField(default=0)
    headers = models.JSONField(default=dict)
    body = models.TextField(default="")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)  # The daily clean-up deletes by age.

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return f"{self.owner} {self.key}"
