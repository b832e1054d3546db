from django.db import models
from django.utils import timezone


class Trace(models.Model):
    """A trace file by name; its summary is computed when the file is first read."""

    name = models.CharField(max_length=120, unique=True)
    format = models.CharField(max_length=20)
    source = models.CharField(max_length=8, choices=[(s, s) for s in ("upload", "folder")])
    sha256 = models.CharField(max_length=64)  # digest of the content
    bytes = models.PositiveBigIntegerField()
    mtime_ns = models.BigIntegerField(default=0)  # modification time in WEIR_TRACE_DIR; a changed file is read again
    summary = models.JSONField(default=dict)
    actor = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        db_table = "experiments_trace"  # the app in which the table was first defined

    def __str__(self) -> str:
        return self.name
