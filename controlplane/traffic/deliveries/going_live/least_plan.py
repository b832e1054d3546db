"""What a delivery must show before it goes live, for policies that may not go live directly."""

from collections.abc import Iterable
from datetime import datetime

from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.moving import clock_s
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.types import Canary, Full, Plan, Step, Switchback
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.policies.models import LeastPlan
from router.contract.problem import Problem


def problems_of(plan: Plan, least: LeastPlan, pools: Iterable[str]) -> tuple[Problem, ...]:
    """Return the problems of a plan that shows too little; paths begin with `plan`. `pools`: the pools on which it
    would go live."""
    problems = []
    if not any(_shows(step, least) for step in plan.steps):
        allowed = f"a canary of at least {least.share:g} for {least.for_s:,} s, or a switchback that takes as long"
        problems.append(Problem("plan.steps", len(plan.steps), "no step shows enough", allowed))
    last = plan.steps[-1]
    if isinstance(last, Full) and last.bake_s < least.bake_s:
        path = f"plan.steps[{len(plan.steps) - 1}].bake_s"
        problems.append(Problem(path, last.bake_s, "is too short", f"{least.bake_s:,} or more"))
    missing = sorted(set(pools) - set(plan.pools))
    if missing:
        text = "leaves out pools that it would go live on"
        problems.append(Problem("plan.pools", ", ".join(plan.pools), text, f"with {', '.join(missing)}"))
    return tuple(problems)


def _shows(step: Step, least: LeastPlan) -> bool:
    if isinstance(step, Canary):
        return step.share >= least.share and step.for_s >= least.for_s
    return isinstance(step, Switchback) and lasts_s(step) >= least.for_s


def lasts_s(step: Step) -> int:
    """The shortest duration of a step."""
    if isinstance(step, Switchback):
        return 2 * step.pairs * step.block_s
    return 0 if isinstance(step, Full) else step.for_s


def evidence_missing(delivery: Delivery, now: datetime) -> str:
    """Say what evidence the step lacks to continue; empty if it has passed, or has run for its time and was judged."""
    if delivery.state == State.WAITING:
        return ""
    number, step = delivery.step + 1, stored_plan.read(delivery.plan).steps[delivery.step]
    ran, needed = clock_s(delivery, now), lasts_s(step)
    if ran < needed:
        return f"step {number} has run for {ran:,.0f} of {needed:,} s"
    looks = delivery.looks.filter(step=delivery.step, at__gte=delivery.step_started_at or delivery.state_at)
    return "" if looks.exists() else f"nobody has looked at step {number} yet"
