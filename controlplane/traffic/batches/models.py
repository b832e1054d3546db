"""Files of API keys, and batches, each of which is a job."""

import secrets
from datetime import datetime, timedelta

from django.db import models
from django.utils import timezone

from controlplane.traffic.batches.turns import PLACES
from controlplane.traffic.keys.models import ApiKey
from fleet.jobs import CANCELLED, DONE, ENDED, FAILED, QUEUED, Job


def new_file_name() -> str:
    return f"file-{secrets.token_hex(12)}"


def new_batch_name() -> str:
    return f"batch_{secrets.token_hex(12)}"


class StoredFile(models.Model):
    """A file of an API key. Its content is in controlplane/traffic/batches/store.py."""

    name = models.CharField(max_length=40, unique=True, default=new_file_name)  # `id` in the API
    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="files")
    filename = models.CharField(max_length=200)
    purpose = models.CharField(max_length=20)  # batch, batch_output
    bytes = models.BigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.name


class Batch(Job):
    TASK = "batches.run"
    AT_ONCE = PLACES
    SHARE_A_THREAD = True  # controlplane/traffic/batches/dispatcher.py

    name = models.CharField(max_length=40, unique=True, default=new_batch_name)  # `id` in the API
    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="batches")
    api_path = models.CharField(max_length=60)
    window_s = models.PositiveIntegerField()
    metadata = models.JSONField(default=dict)
    input_file = models.CharField(max_length=40)
    output_file = models.CharField(max_length=40, blank=True)
    error_file = models.CharField(max_length=40, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    in_progress_at = models.DateTimeField(null=True, blank=True)  # when all of its lines had been found valid
    closed_at = models.DateTimeField(null=True, blank=True)  # when its files were complete
    # When it is to be sent next; from then on, a queued batch waits for others. Empty in rows of an older version.
    due_at = models.DateTimeField(default=timezone.now, null=True, blank=True)
    # Time spent waiting for other batches, which does not count towards its window
    waited_s = models.FloatField(default=0.0, db_default=0.0)
    # Why it sends nothing, if the reason is its own
    waits_for = models.TextField(blank=True, default="", db_default="")
    waits_code = models.CharField(max_length=64, blank=True, default="", db_default="")
    is_expired = models.BooleanField(default=False)
    total = models.PositiveIntegerField(default=0)  # lines
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    faults = models.JSONField(default=list)  # faults of the lines: [{code, line, message, param}]

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["status"], name="batch_by_status")]  # read by doors.jobs.expire every 5 s

    def __str__(self) -> str:
        return self.name

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def waited_now_s(self) -> float:
        """Return `waited_s` of earlier waits plus the current wait for a place."""
        if self.status != QUEUED or self.due_at is None:
            return self.waited_s
        return self.waited_s + max(0.0, (timezone.now() - self.due_at).total_seconds())

    @property
    def expires_at(self) -> datetime:
        return self.created_at + timedelta(seconds=self.window_s + self.waited_now_s)

    @property
    def waits(self) -> str:
        """Return why the batch sends nothing now; empty while it sends."""
        if self.status in ENDED:
            return ""
        return self.waits_for or ("it waits for its turn" if self.status == QUEUED else "")

    @property
    def asked_again_at(self) -> datetime | None:
        return self.due_at if self.waits_for and self.status not in ENDED else None

    @property
    def state(self) -> str:
        """Return the state in OpenAI's terms."""
        if self.status == FAILED:
            return "failed"
        if self.status == CANCELLED:
            return "cancelled" if self.closed_at is not None else "cancelling"
        if self.status == DONE:
            ended = "expired" if self.is_expired else "completed"
            return ended if self.closed_at is not None else "finalizing"
        return "in_progress" if self.in_progress_at is not None else "validating"
