"""Tunings: searches for better values of a policy's parameters, in the twin."""

from django.db import models
from django.utils import timezone

from controlplane.policies.models import Policy
from controlplane.tuning.goals import OBJECTIVES
from fleet.jobs import Job

HELD_OUT = 0.3


def all_objectives() -> list[str]:
    return list(OBJECTIVES)


class Tuning(Job):
    TASK = "tuning.run"
    AT_ONCE = 1

    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="tunings")
    live_version = models.PositiveIntegerField()
    pool = models.CharField(max_length=63)
    trace_name = models.CharField(max_length=120)
    trace = models.JSONField(default=dict)  # TrafficPart.facts
    max_requests = models.PositiveIntegerField()
    seed = models.PositiveIntegerField()
    workers = models.PositiveSmallIntegerField()
    limits = models.JSONField(default=dict)  # {ttft_ms, tpot_ms} as asked for; null: the live version's p90
    objectives = models.JSONField(default=all_objectives)
    time_limit_s = models.PositiveIntegerField(null=True, blank=True)  # of the search; null: none
    held_out = models.FloatField(default=HELD_OUT)  # share of the requests, the last ones, that check the winners
    space = models.JSONField()  # [Dimension.as_dict, …]
    done = models.PositiveIntegerField(default=0)  # trials
    total = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=timezone.now)
    twin = models.JSONField(default=dict)  # {basis, about, expected}
    result = models.JSONField(null=True, blank=True)  # Tuned.result and `not_tested`; null until done
    drafted = models.PositiveIntegerField(null=True, blank=True)  # the trial whose values became a draft last

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["status"], name="tuning_by_status"),  # controlplane.jobs.expire, every 5 s
        ]

    def __str__(self) -> str:
        return f"tuning {self.pk} of {self.policy.name}"


class Trial(models.Model):
    """One point on the searched part of the requests."""

    tuning = models.ForeignKey(Tuning, on_delete=models.CASCADE, related_name="trials")
    number = models.PositiveIntegerField()  # from 1 on
    values = models.JSONField()  # by path
    goals = models.JSONField()  # Goals.as_dict

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["tuning", "number"], name="trial_number_once")]

    def __str__(self) -> str:
        return f"trial {self.number} of tuning {self.tuning_id}"
