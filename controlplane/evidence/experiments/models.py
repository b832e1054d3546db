"""Experiments and their runs. The record of each request is in the data folder."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from django.conf import settings
from django.db import models
from django.utils import timezone

from controlplane.evidence.experiments.record import Expectation, RunFacts
from fleet.jobs import QUEUED, STATUSES, Job
from router.contract.pools import of_run
from router.contract.values.reading import read_value


class FleetChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changes to the pool for one arm. An option that is null is reset to its default."""

    replicas: int | None = None  # None for the pool's own number
    engine: dict[str, Any] = {}  # options of the pool's kind that change
    store: dict[str, Any] = {}  # options of the store shared by its instances


AS_IT_IS = FleetChanges()


class Arm(msgspec.Struct, frozen=True):
    """A policy under test, fixed when the experiment starts."""

    name: str
    policy: str  # empty for a strategy's default document
    version: int  # version of the policy; 0 without one
    strategy: str
    overrides: dict[str, Any]
    document: dict[str, Any]
    sha256: str
    fleet: FleetChanges = AS_IT_IS

    @classmethod
    def stored(cls, arm: Mapping[str, Any]) -> "Arm":
        """Read an arm from the row of an experiment. Before policy schema 2, the strategy was stored as `route`."""
        made = {"strategy" if key == "route" else key: value for key, value in arm.items()}
        overrides = {re.sub(r"^route\.", "strategy.", path): value for path, value in arm["overrides"].items()}
        return read_value({**made, "overrides": overrides}, cls)

    def as_dict(self) -> dict[str, Any]:
        """Return the arm in the form in which it is stored and sent."""
        return cast(dict[str, Any], msgspec.to_builtins(self))

    @property
    def published_version(self) -> int:
        """Return the version number for routers; 1 for a strategy's default document."""
        return self.version or 1


class Matrix(models.Model):
    """Traces × loads × arms × seeds in the twin; each trace at each load is an experiment."""

    name = models.CharField(max_length=120)
    question = models.TextField(blank=True)
    body = models.JSONField()  # request that started it
    actor = models.CharField(max_length=200)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def statuses(self) -> list[str]:
        """Return the statuses of the matrix's cells."""
        return [cell.status for cell in self.cells.all()]


class Experiment(Job):
    """A comparison of arms under the same load."""

    TASK, TURN_FIELDS = "experiments.run", ("mode",)
    AT_ONCE = 16  # limit in the twin, given enough workers; a replay needs the machine for itself, see startable
    queue = "experiments"

    matrix = models.ForeignKey(Matrix, on_delete=models.CASCADE, null=True, blank=True, related_name="cells")
    summary = models.JSONField(default=dict)  # summary of an ended cell: matrix/summary.py
    runs_total: int  # annotated by selectors.matrices, like the next
    runs_done: int
    name = models.CharField(max_length=120)
    question = models.TextField(blank=True)
    trace = models.CharField(max_length=120)
    pool = models.CharField(max_length=63)
    mode = models.CharField(max_length=12, default="replay")
    pacing = models.CharField(max_length=12, choices=[(p, p) for p in ("timestamps", "closed_loop")])
    load_factor = models.FloatField()  # factor on the arrival rate
    duration_s = models.FloatField()  # window from the start of the trace, in trace time
    time_scale = models.FloatField()  # factor by which engines and trace run faster than real time
    seeds = models.JSONField()  # [int, …]
    # [{name, policy, version, strategy, overrides, document, sha256, fleet}, …], as validated; Arm.stored also reads
    # older rows
    arms = models.JSONField()
    expect = models.JSONField(default=list)  # [Expectation, …]
    slo = models.JSONField(default=dict)  # class → {ttft_ms, tpot_ms, e2e_ms}
    verdict = models.CharField(max_length=12, default="none")  # verdict over `expect`: pass, fail, inconclusive or none
    body = models.JSONField(default=dict)  # the request, to start the same experiment again
    record = models.JSONField(default=dict)  # record of provenance.py; empty for experiments older than records
    cancelled_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        # controlplane.doors.jobs.expire reads queued and running rows every 5 s.
        indexes = [models.Index(fields=["status"], name="experiment_by_status")]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def startable(cls, in_turn: "list[Experiment]", running: "models.QuerySet[Experiment]") -> "list[Experiment]":
        """Return the experiments that may start. A replay measures times, so nothing runs beside it, and later
        experiments wait."""
        modes = set(running.values_list("mode", flat=True))
        replay = next((n for n, job in enumerate(in_turn) if job.mode == "replay"), len(in_turn))
        if "replay" in modes:
            return []
        return in_turn[:replay] if replay or modes else in_turn[:1]

    @property
    def expectations(self) -> list[Expectation]:
        return read_value(self.expect, list[Expectation])

    @property
    def settled_arms(self) -> list[Arm]:
        return [Arm.stored(arm) for arm in self.arms]


class Run(models.Model):
    """One execution of one arm with one seed."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="runs")
    arm = models.CharField(max_length=80)
    seed = models.IntegerField()
    ordinal = models.PositiveIntegerField()  # position in the order of execution
    status = models.CharField(max_length=12, default=QUEUED, choices=[(s, s) for s in STATUSES])
    step = models.CharField(max_length=80, blank=True)  # current or failed step
    cause = models.TextField(blank=True)
    log = models.TextField(blank=True)  # last lines of the log, which explain a failure
    done = models.PositiveIntegerField(default=0)  # finished requests
    total = models.PositiveIntegerField(default=0)  # requests in the window; 0 until they are known
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    facts = models.JSONField(default=dict)  # RunFacts, measured in addition to the requests
    results = models.JSONField(default=dict)  # summarize.run_results of an ended run
    warnings = models.JSONField(default=list)  # reasons not to rely on the results

    class Meta:
        ordering = ["ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["experiment", "arm", "seed"], name="one_run_for_each_arm_and_seed")
        ]

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"

    @property
    def measured(self) -> RunFacts:
        return read_value(self.facts, RunFacts)

    @property
    def pool_name(self) -> str:
        return of_run(self.experiment_id, self.pk)

    @property
    def folder(self) -> Path:
        return Path(settings.DATA_DIR) / "experiments" / str(self.pk)

    @property
    def gpu_path(self) -> Path:
        """Return the path of the file with a replay's GPU use over time."""
        return self.folder / "gpu.json"

    @property
    def kv_path(self) -> Path:
        """Return the path of the file with a simulation's KV usage over time."""
        return self.folder / "kv.json"

    @property
    def records_path(self) -> Path:
        return self.folder / "requests.jsonl"
