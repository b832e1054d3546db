"""A draft compared with the live version in the twin: what was asked, how far it is, what came of it."""

from django.db import models
from django.utils import timezone

from controlplane.policies.models import Policy
from fleet.jobs import Job


class Preview(Job):
    """One computation. The draft's document is kept with it: the draft goes on changing."""

    TASK = "previews.run"
    AT_ONCE = 2

    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="previews")
    live_version = models.PositiveIntegerField()
    live_sha256 = models.CharField(max_length=64)
    draft_revision = models.PositiveIntegerField()
    draft_sha256 = models.CharField(max_length=64)
    draft_document = models.JSONField()
    pool = models.CharField(max_length=63)
    trace_name = models.CharField(max_length=120)
    trace = models.JSONField(default=dict)  # {source, requests, played, first_at, last_at, until}, see source.Part
    max_requests = models.PositiveIntegerField()
    seeds = models.JSONField()  # [int, …]
    key = models.CharField(max_length=64)  # hash of all that the result follows from
    done = models.PositiveIntegerField(default=0)  # simulated requests, of live and draft and every seed
    total = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    asked_at = models.DateTimeField(default=timezone.now)  # the last time: the same question gets the same preview
    twin = models.JSONField(default=dict)  # {basis, about, deviation}
    trust = models.JSONField(default=list)  # [{code, text}, …]: what speaks against it, but for the age of its traffic
    result = models.JSONField(null=True, blank=True)  # effect.effect_of, null until it is done

    class Meta:
        ordering = ["-pk"]
        indexes = [
            # jobs.expire looks for queued and running ones every 5 s.
            models.Index(fields=["status"], name="preview_by_status"),
            # A start looks for the same question.
            models.Index(fields=["key"], name="preview_by_key"),
            # The page of a draft shows the one that was asked for last.
            models.Index(fields=["policy", "-asked_at"], name="preview_by_policy"),
        ]

    def __str__(self) -> str:
        return f"preview {self.pk} of {self.policy.name}"

    @property
    def was_cached(self) -> bool:
        """It was there already when it was asked for last."""
        return self.ended_at is not None and self.asked_at > self.ended_at
