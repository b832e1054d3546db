"""The audit log: actor, action, reason, and the values before and after. Rows are never changed or deleted."""

from django.db import models
from django.utils import timezone


class AuditEntry(models.Model):
    """An audit entry. The actor is stored as text, so that the entry outlives the user and the token."""

    at = models.DateTimeField(default=timezone.now)
    actor_kind = models.CharField(max_length=8, choices=[(k, k) for k in ("user", "token", "system")])
    actor_name = models.CharField(max_length=200)
    action = models.CharField(max_length=60)  # object.verb, such as "policy.publish"
    subject = models.CharField(max_length=200)  # such as "policy default v43"
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    request_id = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["-pk"]
        verbose_name_plural = "audit entries"
        # The audit page filters by one of these and pages by descending id.
        indexes = [
            models.Index(fields=["action", "-id"], name="audit_by_action"),
            models.Index(fields=["actor_name", "-id"], name="audit_by_actor"),
            models.Index(fields=["subject", "-id"], name="audit_by_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action} {self.subject}"
