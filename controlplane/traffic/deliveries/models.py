"""Deliveries of candidates, their approvals and looks, and freezes."""

from django.db import models
from django.utils import timezone

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.states import OPEN, Hold, State
from controlplane.traffic.deliveries.timing.freezes import FreezeRule
from controlplane.traffic.policies.models import Policy, PolicyVersion
from router.contract.values.reading import read_value


class Delivery(models.Model):
    """The delivery of a candidate. Only controlplane.traffic.deliveries.services changes it; each change raises
    `revision`."""

    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="deliveries")
    candidate = models.OneToOneField(PolicyVersion, on_delete=models.PROTECT, related_name="delivery")
    # Live version at the time of the proposal
    base = models.ForeignKey(PolicyVersion, on_delete=models.PROTECT, related_name="+")
    plan = models.JSONField()  # canonical plan with every default filled in, read by plan.parse
    plan_sha256 = models.CharField(max_length=64)
    state = models.CharField(max_length=12, choices=[(state.value, state.value) for state in State])
    revision = models.PositiveIntegerField(default=1)

    # Progress
    step = models.PositiveIntegerField(default=0)  # index into the plan's steps; meaningful once started
    generation = models.PositiveIntegerField(default=0)  # grows across all deliveries of a policy
    salt = models.CharField(max_length=16)  # assigns sessions to arms and cells; the same for the whole delivery
    share = models.FloatField(default=0.0)  # share of the requests in effect, 0–1
    shadow = models.FloatField(default=0.0)  # share of the requests decided in shadow, 0–1
    step_started_at = models.DateTimeField(null=True, blank=True)
    step_clock_s = models.FloatField(default=0.0)  # seconds for which this step had run at `clock_at`, excluding holds
    clock_at = models.DateTimeField(null=True, blank=True)  # latest start of the clock; empty while it is stopped
    holds = models.JSONField(default=list)  # states.Hold: the reasons of the hold in force
    holds_in_step = models.PositiveSmallIntegerField(default=0)
    error_at = models.DateTimeField(null=True, blank=True)  # start of the time counted against `hold.error_s`
    good_looks = models.PositiveSmallIntegerField(default=0)  # consecutive good looks during a hold
    blocks = models.JSONField(default=list)  # share of each block of a switchback: [0, 1, 1, 0, …]
    block = models.PositiveIntegerField(default=0)  # index of the current block; len(blocks) once all are over
    slow = models.JSONField(default=dict)  # limits for the routers: {class: [a, b, tau]}
    memory = models.JSONField(default=dict)  # the judge's memory between looks: memory.Memory
    results = models.JSONField(default=list)  # results.StepResult of each ended step

    # Why, who, when
    reason = models.TextField()
    proposed_by = models.CharField(max_length=200)  # name of a user, or of a token with its owner, as shown
    proposer = models.CharField(max_length=150)  # user behind it
    drafters = models.JSONField(default=list)  # users who saved the draft
    again = models.TextField(blank=True)  # reason for another attempt with a document that was aborted or rolled back
    emergency = models.TextField(blank=True)  # reason why an administrator bypassed approvals
    what = models.CharField(max_length=12, blank=True)  # latest transition: states.Trigger
    why = models.TextField(blank=True)  # sentence about the latest transition
    by = models.CharField(max_length=200, blank=True)  # actor of the latest transition, as shown
    proposed_at = models.DateTimeField(default=timezone.now)
    state_at = models.DateTimeField(default=timezone.now)  # start of the state
    ready_at = models.DateTimeField(null=True, blank=True)
    starts_at = models.DateTimeField(null=True, blank=True)  # instant of the plan's `start`
    started_at = models.DateTimeField(null=True, blank=True)
    promoted_at = models.DateTimeField(null=True, blank=True)  # time at which the candidate went live
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(
                fields=["policy"], condition=models.Q(state__in=sorted(OPEN)), name="one_open_delivery_per_policy"
            ),
        ]
        indexes = [
            # The judge reads every open delivery every 5 s.
            models.Index(fields=["state"], name="delivery_by_state"),
            # The page of a policy lists its deliveries, newest first.
            models.Index(fields=["policy", "-id"], name="delivery_by_policy"),
        ]

    def __str__(self) -> str:
        return f"delivery {self.pk} of {self.policy.name} v{self.candidate.number}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def why_held(self) -> tuple[Hold, ...]:
        return read_value(self.holds, tuple[Hold, ...])

    @property
    def subject(self) -> str:
        """Return the subject of audit entries and notices."""
        return f"policy {self.policy.name} v{self.candidate.number}"

    @property
    def etag(self) -> str:
        return f"y{self.pk}.{self.revision}"


class Approval(models.Model):
    """One person's approval of one delivery: its document, plan and base version."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="approvals")
    person = models.CharField(max_length=150)  # the user, even if a token was used
    actor_name = models.CharField(max_length=200)  # name as shown
    sha256 = models.CharField(max_length=64)  # approvals.digest of the approved delivery
    comment = models.TextField(blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["delivery", "person"], name="one_approval_per_person")]

    def __str__(self) -> str:
        return f"{self.actor_name} approves {self.delivery}"


class Look(models.Model):
    """One judgement, kept for 30 days."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="looks")
    at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=12)  # state of the delivery at the look
    step = models.PositiveIntegerField()
    generation = models.PositiveIntegerField()
    findings = models.JSONField(default=list)  # list of findings.GuardFinding
    proposal = models.CharField(max_length=12)  # states.Trigger
    why = models.TextField(blank=True)
    facts = models.JSONField(default=dict)  # requests, routers, milliseconds, …

    class Meta:
        ordering = ["-pk"]
        indexes = [
            # The page and REST list the looks of a delivery, newest first.
            models.Index(fields=["delivery", "-id"], name="look_by_delivery"),
            # The judge deletes looks older than 30 days, once an hour.
            models.Index(fields=["at"], name="look_by_time"),
        ]

    def __str__(self) -> str:
        return f"look {self.pk} at {self.delivery}"

    @property
    def found(self) -> tuple[GuardFinding, ...]:
        return read_value(self.findings, tuple[GuardFinding, ...])


class Behaviour(models.TextChoices):
    """The effect of a freeze on a delivery that is running when the freeze begins."""

    HOLD = "hold"
    ABORT = "abort"


class Freeze(models.Model):
    """A period in which nothing starts, advances or goes live."""

    name = models.CharField(max_length=80)
    policies = models.JSONField(default=list)  # names; empty for all policies
    start = models.CharField(max_length=16)  # first occurrence in local time: 2026-12-20T18:00
    end = models.CharField(max_length=16)
    zone = models.CharField(max_length=64)
    rrule = models.CharField(max_length=200, blank=True)  # empty for a single occurrence
    behaviour = models.CharField(max_length=5, choices=Behaviour, default=Behaviour.HOLD)
    reason = models.TextField()
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True, blank=True)
    removed_by = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def rule(self) -> FreezeRule:
        return read_value(self, FreezeRule, from_attributes=True)
