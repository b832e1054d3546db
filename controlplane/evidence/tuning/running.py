"""Runs a tuning as a job, from its row to its result."""

from typing import Any

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.previews import policy_job, source
from controlplane.evidence.previews.analysis.compute import from_the_start
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.tuning import display
from controlplane.evidence.tuning.compute import Tried, TuningInputs, compute
from controlplane.evidence.tuning.goals import Goals
from controlplane.evidence.tuning.models import Trial, Tuning
from controlplane.evidence.tuning.services import cut
from controlplane.evidence.tuning.space import Dimension
from controlplane.evidence.twin.fingerprint import source_sha256
from controlplane.evidence.twin.pool_model import Modelled, twin_of
from controlplane.traffic.policies import selectors as policies
from fleet import subprocess
from fleet.jobs import Heartbeat
from router.contract.values.problem import InvalidInput


@shared_task(name="tuning.run")
def run_tuning(tuning_id: int) -> None:
    """Perform the tuning, unless another worker has claimed it."""
    policy_job.perform(Tuning, tuning_id, _perform)


def _perform(tuning: Tuning) -> dict[str, Any]:
    """Return the values of the row once it is done."""
    pool = policy_job.pool_of(tuning)
    twin = twin_of(pool)
    part = source.take(tuning.trace_name, tuning.max_requests, tuning.seed, tuning.trace["until"])
    heartbeat = Heartbeat(tuning)
    inputs = fleets.sha256([source_sha256(), repr(twin.fleet), part.content])
    if tuning.trials.exists() and tuning.twin.get("inputs") != inputs:
        message = f"pool {tuning.pool}, its traffic or Weir has changed since the first trials: start another tuning"
        raise InvalidInput(message)
    heartbeat.write(timezone.now(), {"twin": {**policy_job.about(twin), "inputs": inputs}})
    tuned = subprocess.run_in_subprocess(
        compute, _inputs(tuning, twin, part), heartbeat.beat, lambda tried: _keep(tuning, heartbeat, tried)
    )
    return {
        "done": tuning.done,
        "trace": {**part.facts(), "requests": tuning.trace["requests"]},
        "result": {**tuned.result, "not_tested": display.not_tested(tuning, pool, twin, part, tuned)},
    }


def _inputs(tuning: Tuning, twin: Modelled, part: TrafficPart) -> TuningInputs:
    requests = part.trace.requests
    searched = cut(len(requests), tuning.held_out)
    return TuningInputs(
        fleet=twin.fleet,
        document=policies.version(tuning.policy, tuning.live_version).upgraded,
        space=tuple(Dimension.of(each) for each in tuning.space),
        search=requests[:searched],
        check=from_the_start(requests[searched:]),
        pacing=part.trace.pacing,
        seed=tuning.seed,
        trials=tuning.total,
        workers=tuning.workers,
        ttft_limit_ms=tuning.limits["ttft_ms"],
        tpot_limit_ms=tuning.limits["tpot_ms"],
        objectives=tuple(tuning.objectives),
        time_limit_s=tuning.time_limit_s,
        kept=tuple(Tried(each.number, each.values, Goals(**each.goals)) for each in tuning.trials.all()),
    )


def _keep(tuning: Tuning, heartbeat: Heartbeat, tried: Tried) -> None:
    tuning.done = tried.number
    values = {"values": tried.values, "goals": tried.goals.as_dict()}
    with transaction.atomic():  # together with the heartbeat, which a worker that counts as lost cannot write
        heartbeat.write(timezone.now(), {"done": tuning.done})
        Trial.objects.update_or_create(tuning=tuning, number=tried.number, defaults=values)
