"""The plan's steps as a stepper: done, now, next; and the evidence that each kind of step can and cannot give. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.pages.delivery_pages.display.evidence import METRICS, signed_points
from controlplane.pages.delivery_pages.display.facts import Facts
from controlplane.traffic.deliveries.plan.types import (
    NEEDED,
    Canary,
    ComparisonGuard,
    Full,
    Guard,
    Plan,
    Shadow,
    Step,
    Switchback,
)
from controlplane.traffic.deliveries.states import CLOSED, IN_STEP, State
from controlplane.traffic.deliveries.timing.durations import countdown, words
from controlplane.traffic.policies.selectors import listed
from fleet.counted import percent as in_percent
from fleet.counted import times


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """The evidence that a kind of step can and cannot give."""

    shows: str
    not_shown: str


SHOWS: Mapping[str, StepEvidence] = {
    "shadow": StepEvidence(
        "which decisions would change, and whether the candidate raises errors or overloads an instance",
        "latency: every request is still served as live decides",
    ),
    "canary": StepEvidence(
        "harm to the requests of the candidate, and ends it",
        "the true size of an effect: both arms share queues and caches",
    ),
    "switchback": StepEvidence(
        "the effect on the whole pool: all requests change sides by a drawn schedule",
        "all of an effect that outlasts a block: it then looks smaller than it is",
    ),
    "full": StepEvidence(
        "whether the pool stays healthy under the candidate alone", "a comparison: no request is left for the other arm"
    ),
}


@dataclass(frozen=True, slots=True)
class StepRow:
    number: str
    mode: str
    title: str  # for example Canary 25 %
    needs: str  # for example: at least 15 min, at most 1 h, then asks
    place: str  # done, now, next or later; stopped for the step in which a delivery ended
    time: str  # remaining time of the current step
    value: str  # seconds for the progress bar; empty without one
    max: str


def title(step: Step) -> str:
    match step:
        case Shadow(sample=sample):
            return "Shadow" if sample == 1 else f"Shadow of {percent(sample)}"
        case Canary(share=share):
            return f"Canary {percent(share)}"
        case Switchback():
            return "Switchback"
        case Full():
            return "Everyone"


def percent(share: float) -> str:
    return in_percent(share, ".3g")


def needs(step: Step) -> str:
    """Describe the duration of a step and what it waits for."""
    match step:
        case Shadow(for_s=for_s):
            return words(for_s)
        case Canary(for_s=for_s, max_s=max_s, then=then):
            return f"at least {words(for_s)}, at most {words(max_s)}{', then asks' if then else ''}"
        case Switchback(pairs=pairs, block_s=block_s):
            return f"{pairs} pairs of blocks of {words(block_s)}"
        case Full(bake_s=bake_s):
            return f"then watched for {words(bake_s)}" if bake_s else "at once, unwatched"


@dataclass(frozen=True, slots=True)
class PlanWords:
    steps: str  # with their shortest times: Shadow 10 min → Canary 5 % 10 min → Everyone, then watched for 1 h
    guards: str  # what the guards check: warm and heavy TTFT above 1.10×, errors
    pools: str


def in_words(plan: Plan) -> PlanWords:
    timed = (f", {needs(step)}" if isinstance(step, Full) else f" {words(length_s(step))}" for step in plan.steps)
    steps = (f"{title(step)}{time}" for step, time in zip(plan.steps, timed, strict=True))
    return PlanWords(" → ".join(steps), ", ".join(dict.fromkeys(map(_guarded, plan.guards))), ", ".join(plan.pools))


def _guarded(guard: Guard) -> str:
    title = METRICS.get(guard.metric, guard.metric)
    if not isinstance(guard, ComparisonGuard):
        return title
    limit = times(1 + guard.worse) if guard.metric in NEEDED else signed_points(guard.worse)
    return f"{listed(guard.classes)} {title} above {limit}"


def length_s(step: Step) -> float:
    """Return the shortest duration of a step."""
    match step:
        case Shadow(for_s=for_s) | Canary(for_s=for_s):
            return for_s
        case Switchback(pairs=pairs, block_s=block_s):
            return 2 * pairs * block_s
        case Full(bake_s=bake_s):
            return bake_s


def rows(facts: Facts) -> tuple[StepRow, ...]:
    return tuple(_row(facts, index, step) for index, step in enumerate(facts.plan.steps))


def _row(facts: Facts, index: int, step: Step) -> StepRow:
    place = place_of(facts, index)
    timed = place == "now" and facts.state is not State.ARMING and facts.unjudged_s is None and length_s(step) > 0
    return StepRow(
        number=str(index + 1),
        mode=step.mode,
        title=title(step),
        needs=needs(step),
        place=place,
        time=_time(facts, step) if timed else "",
        value=f"{min(facts.clock_s, length_s(step)):.0f}" if timed else "",
        max=f"{length_s(step):.0f}",
    )


def place_of(facts: Facts, index: int) -> str:
    at = position(facts)
    if index < at:
        return "done"
    if facts.state in CLOSED:
        return "stopped" if index == at else "later"
    if index == at:
        return "now"
    return "next" if index == at + 1 else "later"


def position(facts: Facts) -> int:
    """Return the index of the current step; -1 before the start, the number of steps after the end."""
    steps = len(facts.plan.steps)
    match facts.state:
        case State.DELIVERED | State.FINISHED:
            return steps
        case State.BAKING | State.ROLLED_BACK:
            return steps - 1
        case State.ARMING | State.ABORTED:
            return facts.step
        case state if state in IN_STEP:
            return facts.step
        case _:
            return -1


def _time(facts: Facts, step: Step) -> str:
    left = length_s(step) - facts.clock_s
    if facts.state is State.WAITING:
        return "passed, asks to continue"
    if facts.state in (State.PAUSED, State.HOLDING):
        return f"stopped with {countdown(left)} left" if left > 0 else "stopped"
    if left > 0:
        return f"{countdown(left)} left of {countdown(length_s(step))}"
    return f"{countdown(facts.clock_s)} of at least {countdown(length_s(step))}"
