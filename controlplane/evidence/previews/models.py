"""Comparisons of a draft with the live version in the twin."""

from django.db import models
from django.utils import timezone

from controlplane.evidence.previews.policy_job import PolicyJob
from controlplane.traffic.policies.models import Policy


class Preview(PolicyJob):
    """A comparison in the twin. It contains a copy of the draft's document, because the draft keeps changing. The
    result is that of effect.effect_of."""

    TASK = "previews.run"
    AT_ONCE = 2

    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="previews")
    live_sha256 = models.CharField(max_length=64)
    draft_revision = models.PositiveIntegerField()
    draft_sha256 = models.CharField(max_length=64)
    draft_document = models.JSONField()
    seeds = models.JSONField()  # [int, …]
    key = models.CharField(max_length=64)  # hash of everything that determines the result
    total = models.PositiveIntegerField(default=0)  # number of compute.simulated requests
    # Time of the latest request for it; an equal request returns this preview
    asked_at = models.DateTimeField(default=timezone.now)
    trust = models.JSONField(default=list)  # [{code, text}, …]: cautions, except the one about old traffic
    # Result of the first requests; null once the complete result is there
    first_result = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [
            # controlplane.doors.jobs.expire reads queued and running rows every 5 s.
            models.Index(fields=["status"], name="preview_by_status"),
            # A start looks for an earlier preview of the same question.
            models.Index(fields=["key"], name="preview_by_key"),
            # The page of a draft shows its latest preview.
            models.Index(fields=["policy", "-asked_at"], name="preview_by_policy"),
        ]

    @property
    def was_cached(self) -> bool:
        """Return whether the preview had ended before it was last requested."""
        return self.ended_at is not None and self.asked_at > self.ended_at
