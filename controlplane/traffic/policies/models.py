"""A named policy, its immutable versions, and its one open draft."""

from dataclasses import dataclass
from datetime import datetime

from django.db import models
from django.utils import timezone

from controlplane.traffic.policies.versioned import Immutable, OpenDraft, PublishedVersion, Unchanging
from router.contract.values.json_value import JsonObject
from router.policy.schema.document import upgrade_if_known

__all__ = ["Direct", "Draft", "FormerPool", "Immutable", "LeastPlan", "Policy", "PolicyVersion"]


class Direct(models.TextChoices):
    """The users who may publish without a delivery. Everyone may roll back."""

    ALLOWED = "allowed"
    ADMIN = "admin"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class LeastPlan:
    """The least evidence that the plan of a delivery must provide."""

    share: float  # share of a canary, 0–1
    for_s: int  # length of that canary, or of the whole switchback
    bake_s: int


class Policy(models.Model):
    name = models.CharField(max_length=50, unique=True)
    live = models.PositiveIntegerField(default=1)  # number of the version that decides requests
    direct = models.CharField(max_length=8, choices=Direct, default=Direct.ALLOWED)
    approvals_needed = models.PositiveSmallIntegerField(default=0)  # smallest number of approvals in a plan
    least_share = models.FloatField(default=0.05, db_default=0.05)  # See LeastPlan for these three.
    least_for_s = models.PositiveIntegerField(default=600, db_default=600)
    least_bake_s = models.PositiveIntegerField(default=600, db_default=600)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "policies"

    def __str__(self) -> str:
        return self.name

    @property
    def least_plan(self) -> LeastPlan:
        return LeastPlan(self.least_share, self.least_for_s, self.least_bake_s)


class FormerPool(models.Model):
    """A removed pool, whose policy's rules still apply to the pool that takes over its requests."""

    name = models.CharField(max_length=63)
    model = models.CharField(max_length=200)
    policy = models.CharField(max_length=63)
    removed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.name


class VersionQuerySet(Unchanging, models.QuerySet["PolicyVersion"]):
    pass


class PolicyVersion(PublishedVersion):
    """One document of a policy, published or proposed as the candidate of a delivery."""

    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="versions")

    objects = VersionQuerySet.as_manager()

    class Meta:
        ordering = ["-number"]
        constraints = [
            # The database gives the next number to only one of two concurrent publications.
            models.UniqueConstraint(fields=["policy", "number"], name="policy_version_number_once"),
        ]

    def __str__(self) -> str:
        return f"{self.policy.name} v{self.number}"

    @property
    def live_since(self) -> datetime | None:
        """Return when the version went live; None for a candidate that has not gone live."""
        delivery = getattr(self, "delivery", None)  # Only candidates have one.
        return self.published_at if delivery is None else delivery.promoted_at

    @property
    def upgraded(self) -> JsonObject:
        return upgrade_if_known(self.document)


class Draft(OpenDraft):
    """The open draft."""

    policy = models.OneToOneField(Policy, on_delete=models.CASCADE, related_name="draft")  # one open draft per policy
    note = models.TextField(blank=True)  # origin of its values: the evidence of a tuning
    savers = models.JSONField(default=list)  # users who saved it; none of them may approve its delivery

    def __str__(self) -> str:
        return f"draft of {self.policy.name}, revision {self.revision}"

    @property
    def upgraded(self) -> JsonObject:
        return upgrade_if_known(self.document)

    def saved_by(self, person: str) -> dict[str, object]:
        return {"savers": sorted({*self.savers, person})}
