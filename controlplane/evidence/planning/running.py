"""Runs a plan as a job, from its row to its result."""

from time import monotonic
from typing import Any

from celery import shared_task

from controlplane.evidence.plan import planned
from controlplane.evidence.plan.question import MeasuredEngines, busiest
from controlplane.evidence.planning.body import PlanIn
from controlplane.evidence.planning.measured import digest, engines_of
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews import policy_job, source
from controlplane.evidence.twin.compiled import COPIES
from controlplane.evidence.twin.fingerprint import source_sha256
from fleet import jobs, subprocess

READ = 200_000  # requests read at most from a recording; the busiest of them are played
LONGEST_S = 3_600.0  # longest search, wall clock; after this the plan fails, and the next plan begins


@shared_task(name="planning.run")
def run_plan(plan_id: int) -> None:
    """Compute the plan, unless another worker has claimed it."""
    policy_job.perform(FleetPlan, plan_id, _perform)


def _perform(made: FleetPlan) -> dict[str, Any]:
    """Return the values of the row once it is done."""
    asked = PlanIn.model_validate(made.asked)
    part = source.take(made.trace_name, READ, asked.seed, made.trace["until"])
    requests = busiest(part.trace.requests, asked.requests)
    heartbeat, end = jobs.Heartbeat(made), monotonic() + LONGEST_S

    def take(plays: tuple[int, int]) -> None:
        made.done, made.total = plays

    def beat() -> None:
        if monotonic() >= end:
            plays = f"{made.done:,} of at most {made.total:,} plays"
            raise subprocess.SubprocessFailed(
                f"no answer after {LONGEST_S:,.0f} s, {plays}: ask for fewer requests, GPUs or policies"
            )
        heartbeat.beat(done=made.done, total=made.total)

    job = asked.question_with(_engines(made, asked.pool)), requests, part.trace.pacing
    result = subprocess.run_in_subprocess(planned.compute, job, beat, take, compiled=COPIES)
    facts = {**part.facts(), "played": len(requests)}
    return {"done": made.done, "total": made.done, "trace": facts, "source": source_sha256(), "result": result}


def _engines(made: FleetPlan, pool: str) -> MeasuredEngines | None:
    """Return the measured engines about which the question was asked. Raise InvalidInput, JobFailed."""
    measured = engines_of(pool)
    if digest(measured) != made.trace.get("engines", ""):
        raise jobs.JobFailed(f"pool {pool} was measured or changed since the question: plan again")
    return measured
