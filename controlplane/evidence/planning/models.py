"""Plans: searches for the cheapest fleets that hold an SLO for a trace, in the twin."""

from django.db import models
from django.utils import timezone

from controlplane.evidence.previews.policy_job import TwinJob


class FleetPlan(TwinJob):
    """A plan. `done` counts simulations; the result is plan.planned.as_json."""

    TASK = "planning.run"
    AT_ONCE = 1

    asked = models.JSONField()  # body.PlanIn
    key = models.CharField(max_length=64)  # hash of everything that determines the result
    source = models.CharField(max_length=64)  # hash of the code that computes it
    total = models.PositiveIntegerField(default=0)  # largest number of simulations; 0 until the plan runs
    # When it was last requested; repeating the question returns this plan
    asked_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        verbose_name = "plan"
        indexes = [
            models.Index(fields=["status"], name="plan_by_status"),  # read by doors.jobs.expire every 5 s
            models.Index(fields=["key"], name="plan_by_key"),  # A start looks for an earlier plan of the same question.
        ]

    @property
    def compared(self) -> str:
        return f"fleets of {self.asked.get('pool') or self.asked['model']}"
