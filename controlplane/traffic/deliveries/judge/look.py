"""Converts findings into the transition that the judge proposes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from controlplane.traffic.deliveries.judge.findings import GuardFinding, LookFacts
from controlplane.traffic.deliveries.judge.memory import Memory
from controlplane.traffic.deliveries.plan.types import Canary, Full, Plan, Shadow, Step, Switchback
from controlplane.traffic.deliveries.states import Hold, State, Trigger
from controlplane.traffic.deliveries.timing.durations import words
from fleet.counted import percent

Findings = Sequence[GuardFinding]
UNENDED = "answers"  # metric of a finding about outstanding answers, for which a switchback waits before it judges


@dataclass(frozen=True, slots=True)
class Proposal:
    """The transition proposed by the judge, with its reasons. services.judge_step applies it."""

    what: Trigger
    why: str = ""
    holds: tuple[Hold, ...] = ()  # reasons for a HOLD
    findings: tuple[GuardFinding, ...] = ()
    facts: LookFacts | None = None
    memory: Memory | None = None  # the judge's new memory


@dataclass(frozen=True, slots=True)
class Situation:
    """The delivery's situation at this look."""

    plan: Plan
    state: State
    step: int
    clock_s: float  # time for which the step has run, excluding holds
    block: int = 0  # index of a switchback's current block; `blocks` once all are over
    blocks: int = 0  # number of blocks

    @property
    def current(self) -> Step:
        return self.plan.steps[self.step]


def propose(at: Situation, findings: Findings, memory: Memory, now: float) -> Proposal:
    """Propose a transition. Failures come first: harm counts even if sums are doubtful or the time is over."""
    return _ended(at, findings) or _held(at, findings) or _next(at, findings, memory, now)


def _ended(at: Situation, findings: Findings) -> Proposal | None:
    if at.state not in (State.STEP, State.BAKING):  # the live version decides, so a failure is not the candidate's
        return None
    failed = [each for each in findings if each.verdict == "fail"]
    aborting = [each for each in failed if each.effect == "abort" or at.state is State.BAKING]
    if aborting:
        return Proposal(Trigger.FAIL, _texts(aborting))
    if failed:
        return Proposal(Trigger.PAUSE, _texts(failed))
    return None


def _held(at: Situation, findings: Findings) -> Proposal | None:
    if at.state not in (State.STEP, State.HOLDING):
        return None
    errors = [each for each in findings if each.verdict == "error"]
    if errors:
        holds = tuple(Hold(each.metric, f"{each.pool}: {each.text}" if each.pool else each.text) for each in errors)
        return Proposal(Trigger.HOLD, _texts(errors), holds)
    return Proposal(Trigger.GOOD) if at.state is State.HOLDING else None


def _next(at: Situation, findings: Findings, memory: Memory, now: float) -> Proposal:
    if at.state is not State.STEP or isinstance(at.current, Full):
        return Proposal(Trigger.STAY)
    blind = _blind(at, findings, memory, now)
    if blind is not None:
        return blind
    if isinstance(at.current, Switchback):
        return _next_block(at, at.current, findings)
    if isinstance(at.current, Shadow):
        return _after_shadow(at, at.current, findings)
    return _after_canary(at, at.current, findings)


def _blind(at: Situation, findings: Findings, memory: Memory, now: float) -> Proposal | None:
    """Pause after too long a time without data. A switchback has no data until its blocks are over, and is judged at
    its end."""
    lacking = without_data(findings)
    if isinstance(at.current, Switchback) or not lacking or memory.without_data is None:
        return None
    if now - memory.without_data < at.plan.hold.no_data_s:
        return None
    return Proposal(Trigger.PAUSE, f"no data for {words(at.plan.hold.no_data_s)}: {_texts(lacking)}")


def without_data(findings: Findings) -> list[GuardFinding]:
    return [each for each in findings if each.needed and each.verdict == "no_data"]


def _after_shadow(at: Situation, step: Shadow, findings: Findings) -> Proposal:
    if at.clock_s < step.for_s or without_data(findings):
        return Proposal(Trigger.STAY)
    return Proposal(Trigger.PASS, f"shadow for {words(step.for_s)}: no problem found")


def _after_canary(at: Situation, step: Canary, findings: Findings) -> Proposal:
    if at.clock_s >= step.for_s and is_fine(findings):
        left = [each for each in findings if each.verdict == "deferred"]
        passed = f"{percent(step.share)} for {words(at.clock_s)}"
        return Proposal(Trigger.PASS, f"{passed}: {_texts([*left, *_needed(findings)])}")
    if at.clock_s < step.max_s:
        return Proposal(Trigger.STAY)
    open_ones = [each for each in _needed(findings) if each.verdict != "fine"]
    return Proposal(
        Trigger.PAUSE, f"not enough to go on after {words(step.max_s)}: {_texts(open_ones) or 'no class was judged'}"
    )


def _next_block(at: Situation, step: Switchback, findings: Findings) -> Proposal:
    if at.block < at.blocks:
        return Proposal(Trigger.BLOCK if at.clock_s >= (at.block + 1) * step.block_s else Trigger.STAY)
    if any(each.metric == UNENDED for each in findings):
        return Proposal(Trigger.STAY)
    pairs = at.blocks // 2
    if is_fine(findings):
        return Proposal(Trigger.PASS, f"{pairs} pairs of blocks: {_texts(_needed(findings))}")
    open_ones = [each for each in _needed(findings) if each.verdict != "fine"]
    said = _texts(open_ones) or "no class was judged"
    return Proposal(Trigger.PAUSE, f"cannot tell after {pairs} pairs: {said}; extend it by pairs, advance or abort")


def is_fine(findings: Findings) -> bool:
    """Return whether every needed guard judged by this step is fine; False if there is none."""
    needed = _needed(findings)
    return bool(needed) and all(each.verdict == "fine" for each in needed)


def _needed(findings: Findings) -> list[GuardFinding]:
    return [each for each in findings if each.needed and each.verdict not in ("not_judged", "deferred")]


def _texts(findings: Findings) -> str:
    """Join the first three sentences, naming each pool once; the look stores all of them."""
    by_pool = groupby(findings[:3], key=lambda each: each.pool)
    said = [f"{pool and f'{pool}: '}{'; '.join(each.text for each in of_pool)}" for pool, of_pool in by_pool]
    return "; ".join([*said, f"{len(findings) - 3} more"] if len(findings) > 3 else said)
