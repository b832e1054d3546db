"""Tunings: searches for better values of a policy's parameters, in the twin."""

from django.db import models

from controlplane.evidence.previews.policy_job import PolicyJob
from controlplane.evidence.tuning.goals import OBJECTIVES
from controlplane.traffic.policies.models import Policy

HELD_OUT = 0.3


def all_objectives() -> list[str]:
    return list(OBJECTIVES)


class Tuning(PolicyJob):
    """A tuning. `done` counts trials; its result is Tuned.result and `not_tested`."""

    TASK = "tuning.run"
    AT_ONCE = 1

    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="tunings")
    seed = models.PositiveIntegerField()
    workers = models.PositiveSmallIntegerField()
    limits = models.JSONField(default=dict)  # {ttft_ms, tpot_ms} as requested; null for the live version's p90
    objectives = models.JSONField(default=all_objectives)
    time_limit_s = models.PositiveIntegerField(null=True, blank=True)  # longest search; null for no limit
    # Share of the requests, at the end of the trace, on which winners are checked
    held_out = models.FloatField(default=HELD_OUT)
    space = models.JSONField()  # [Dimension.as_dict, …]
    total = models.PositiveIntegerField()  # number of trials
    drafted = models.PositiveIntegerField(null=True, blank=True)  # latest trial whose values were used to open a draft

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["status"], name="tuning_by_status"),  # read by doors.jobs.expire every 5 s
        ]


class Trial(models.Model):
    """One point and its goals on the searched requests."""

    tuning = models.ForeignKey(Tuning, on_delete=models.CASCADE, related_name="trials")
    number = models.PositiveIntegerField()  # numbered from 1
    values = models.JSONField()  # values by path
    goals = models.JSONField()  # Goals.as_dict

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["tuning", "number"], name="trial_number_once")]

    def __str__(self) -> str:
        return f"trial {self.number} of tuning {self.tuning_id}"
