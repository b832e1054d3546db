"""Ends or restarts jobs whose worker was lost, and sends jobs whose message was lost. fleet/jobs has the states of a
job."""

from datetime import datetime
from functools import partial

from django.utils import timezone

from controlplane.evidence.experiments import running as experiments
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.modes import ephemeral_pool
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.tuning.models import Tuning
from controlplane.traffic.batches import services as batches
from controlplane.traffic.batches.models import Batch
from fleet import jobs
from fleet.calibration import services as calibrations
from fleet.models import Calibration
from fleet.tries import tries


def step(now: datetime | None = None) -> None:
    with tries() as attempt:
        jobs.fail_lost(Experiment, experiments.fail_lost, attempt, now)
        experiments.end_left(attempt, now)
        jobs.fail_lost(Tuning, jobs.run_again, attempt, now)  # continues after its trials
        for simulation in (Preview, FleetPlan):
            jobs.fail_lost(simulation, partial(jobs.run_again, done=0), attempt, now)
        jobs.fail_lost(Calibration, calibrations.fail, attempt, now)
        jobs.fail_lost(Batch, batches.requeue, attempt, now)
        with attempt("batches that have ended"):
            batches.close_left()
        for model in (Experiment, Preview, Tuning, FleetPlan, Calibration):
            with attempt(f"queued {model.__name__}"):
                jobs.send_next(model, jobs.SENT_AGAIN_S)
        with attempt("queued batches"):
            batches.send_due(now or timezone.now())
        with attempt("pools of runs that have ended"):
            ephemeral_pool.remove_abandoned()
