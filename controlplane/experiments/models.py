"""Experiments and their runs. The record of each request is in the data folder."""

from pathlib import Path

from django.conf import settings
from django.db import models
from django.utils import timezone

from fleet.jobs import QUEUED, STATUSES, Job
from router.contract.pools import of_run


class Experiment(Job):
    """One question, asked of several arms with the same load."""

    TASK = "experiments.run"
    AT_ONCE = 1  # two would share the machine
    queue = "experiments"

    name = models.CharField(max_length=120)
    question = models.TextField(blank=True)
    trace = models.CharField(max_length=120)
    pool = models.CharField(max_length=63)
    mode = models.CharField(max_length=12, default="replay")
    pacing = models.CharField(max_length=12, choices=[(p, p) for p in ("timestamps", "closed_loop")])
    load_factor = models.FloatField()  # arrivals come this many times as fast
    duration_s = models.FloatField()  # window from the trace's start, in trace time
    time_scale = models.FloatField()  # engines and trace run this many times faster than real time
    seeds = models.JSONField()  # [int, …]
    # [{name, policy, version, strategy, overrides, document, sha256}, …], as validated; older ones: arms.upgraded
    arms = models.JSONField()
    expect = models.JSONField(default=list)  # [{metric, class, arm, min, max}, …] for the JUnit report
    body = models.JSONField(default=dict)  # as asked for, to start the same again
    cancelled_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        # jobs.expire looks for queued and running ones every 5 s.
        indexes = [models.Index(fields=["status"], name="experiment_by_status")]

    def __str__(self) -> str:
        return self.name


class Run(models.Model):
    """One seeded execution of one arm."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="runs")
    arm = models.CharField(max_length=80)
    seed = models.IntegerField()
    ordinal = models.PositiveIntegerField()  # the order of execution inside the experiment
    status = models.CharField(max_length=12, default=QUEUED, choices=[(s, s) for s in STATUSES])
    step = models.CharField(max_length=80, blank=True)  # what it is doing, or was doing when it failed
    cause = models.TextField(blank=True)
    log = models.TextField(blank=True)  # the last lines that explain a failure
    done = models.PositiveIntegerField(default=0)  # finished requests
    total = models.PositiveIntegerField(default=0)  # requests in the window, 0 until they are known
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    facts = models.JSONField(default=dict)  # {instances, client_cpu, sim_lag_p99_s, …}: what the records do not hold
    results = models.JSONField(default=dict)  # this run's own figures, once it has ended
    warnings = models.JSONField(default=list)  # why the figures should not be trusted

    class Meta:
        ordering = ["ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["experiment", "arm", "seed"], name="one_run_for_each_arm_and_seed")
        ]

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"

    @property
    def pool_name(self) -> str:
        return of_run(self.experiment_id, self.pk)

    @property
    def folder(self) -> Path:
        return Path(settings.DATA_DIR) / "experiments" / str(self.pk)

    @property
    def records_path(self) -> Path:
        return self.folder / "requests.jsonl"
