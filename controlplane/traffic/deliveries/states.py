"""The states of a delivery and every transition between them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from controlplane.traffic.deliveries.plan.types import Canary, Full, Plan, Shadow, Switchback

GOOD_LOOKS = 3  # consecutive good looks that end a hold
HOLDS_IN_STEP = 3  # after this many holds in a step the delivery pauses, because the problem keeps recurring
FREEZE = "freeze"  # code of a hold that is unrelated to the candidate


class State(StrEnum):
    PROPOSED = "proposed"  # waiting for approvals
    READY = "ready"  # waiting for its start
    ARMING = "arming"  # routers load both versions; the live version still decides everything
    STEP = "step"  # a step is running and being judged
    HOLDING = "holding"  # waiting; continues by itself
    WAITING = "waiting"  # the step has passed; a person must let it continue
    PAUSED = "paused"  # needs a person
    BAKING = "baking"  # the candidate is live and still being watched
    DELIVERED = "delivered"
    FINISHED = "finished"  # every step has passed, and the plan has no step `full`
    ABORTED = "aborted"
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    MISSED = "missed"


CLOSED = frozenset(list(State)[list(State).index(State.DELIVERED) :])
OPEN = frozenset(State) - CLOSED
STILL = frozenset({State.HOLDING, State.WAITING, State.PAUSED})  # between steps: the live version decides every request
IN_STEP = STILL | {State.STEP}  # a step is running, or has stopped
SPLIT = IN_STEP | {State.ARMING}  # routers hold both versions


class Origin(StrEnum):
    PERSON = "person"
    JUDGE = "judge"
    ROUTER = "router"
    SYSTEM = "system"  # the clock, a freeze, or another publication


class Trigger(StrEnum):
    STAY = "stay"  # look without a change
    APPROVE = "approve"  # last missing approval
    REJECT = "reject"
    EXPIRE = "expire"
    WITHDRAW = "withdraw"
    START = "start"
    MISS = "miss"
    ARMED = "armed"  # every live router has acknowledged
    LATE = "late"  # a live router did not acknowledge in time
    PASS = "pass"  # noqa: S105  (a step)
    ADVANCE = "advance"  # a person lets the step pass
    BLOCK = "block"  # next block of a switchback
    HOLD = "hold"
    GOOD = "good"  # look during a hold that finds no reason to hold
    PAUSE = "pause"
    RESUME = "resume"
    EXTEND = "extend"  # more pairs of blocks for a switchback
    GIVE_UP = "give_up"  # paused for a day
    ABORT = "abort"
    FAIL = "fail"  # a guard failed
    TRIP = "trip"  # a router stopped it
    OVERTAKE = "overtake"  # another version was published
    ROLL_BACK = "roll_back"  # an older version was restored
    DELIVER = "deliver"  # the bake is over


@dataclass(frozen=True, slots=True)
class Transition:
    """The states from which an action starts, the state to which it leads, and who may do it."""

    what: Trigger
    start: frozenset[State]
    to: State | None  # None if computed; see `_computed`
    who: frozenset[Origin]


def _rule(what: Trigger, start: frozenset[State] | set[State], to: State | None, *who: Origin) -> Transition:
    return Transition(what, frozenset(start), to, frozenset(who))


_RUNNING = {State.STEP, State.HOLDING, State.WAITING}
RULES: tuple[Transition, ...] = (
    _rule(Trigger.APPROVE, {State.PROPOSED}, State.READY, Origin.PERSON),
    _rule(Trigger.REJECT, {State.PROPOSED}, State.REJECTED, Origin.PERSON),
    _rule(Trigger.EXPIRE, {State.PROPOSED}, State.EXPIRED, Origin.SYSTEM),
    _rule(Trigger.WITHDRAW, {State.PROPOSED, State.READY}, State.WITHDRAWN, Origin.PERSON),
    _rule(Trigger.START, {State.READY}, None, Origin.PERSON, Origin.SYSTEM),
    _rule(Trigger.MISS, {State.READY}, State.MISSED, Origin.SYSTEM),
    _rule(Trigger.ARMED, {State.ARMING}, State.STEP, Origin.SYSTEM),
    _rule(Trigger.LATE, {State.ARMING}, State.PAUSED, Origin.SYSTEM),
    _rule(Trigger.PASS, {State.STEP}, None, Origin.JUDGE),
    _rule(Trigger.ADVANCE, _RUNNING, None, Origin.PERSON),
    _rule(Trigger.BLOCK, {State.STEP}, State.STEP, Origin.JUDGE),
    _rule(Trigger.HOLD, {State.STEP, State.HOLDING}, None, Origin.JUDGE, Origin.SYSTEM),
    _rule(Trigger.GOOD, {State.HOLDING}, None, Origin.JUDGE),
    _rule(Trigger.PAUSE, _RUNNING, State.PAUSED, Origin.PERSON, Origin.JUDGE, Origin.SYSTEM),
    _rule(Trigger.RESUME, {State.PAUSED}, State.ARMING, Origin.PERSON),
    _rule(Trigger.EXTEND, {State.STEP, State.HOLDING, State.PAUSED}, None, Origin.PERSON),
    _rule(Trigger.GIVE_UP, {State.PAUSED}, State.ABORTED, Origin.SYSTEM),
    _rule(Trigger.DELIVER, {State.BAKING}, State.DELIVERED, Origin.SYSTEM),
    _rule(Trigger.ABORT, OPEN - {State.BAKING}, State.ABORTED, Origin.PERSON, Origin.SYSTEM),
    _rule(Trigger.ABORT, {State.BAKING}, State.ROLLED_BACK, Origin.PERSON),
    _rule(Trigger.FAIL, {State.STEP}, State.ABORTED, Origin.JUDGE),
    _rule(Trigger.FAIL, {State.BAKING}, State.ROLLED_BACK, Origin.JUDGE),
    _rule(Trigger.TRIP, SPLIT, State.ABORTED, Origin.ROUTER),
    _rule(Trigger.OVERTAKE, OPEN, State.ABORTED, Origin.PERSON),
    _rule(Trigger.ROLL_BACK, OPEN - {State.BAKING}, State.ABORTED, Origin.PERSON),
    _rule(Trigger.ROLL_BACK, {State.BAKING}, State.ROLLED_BACK, Origin.PERSON),
)
TABLE: Mapping[tuple[Trigger, State], Transition] = {(rule.what, start): rule for rule in RULES for start in rule.start}


class Hold(Struct, frozen=True):
    """A reason for a hold."""

    code: str
    text: str


class Position(Struct, frozen=True):
    """The columns of a delivery that transitions change."""

    state: State
    step: int = 0
    generation: int = 0
    share: float = 0.0  # share of the requests, 0–1
    shadow: float = 0.0  # share in shadow, 0–1
    clock_s: float = field(name="step_clock_s", default=0.0)  # current age of the step
    holds: tuple[Hold, ...] = ()
    holds_in_step: int = 0
    good_looks: int = 0
    blocks: tuple[int, ...] = ()
    block: int = 0  # len(blocks) once all are over and late answers are awaited


class TransitionRefused(Exception):
    """The state or the plan does not allow the transition."""


def next_position(
    now: Position, what: Trigger, plan: Plan, *, holds: tuple[Hold, ...] = (), blocks: tuple[int, ...] = ()
) -> Position:
    """Return the position after `what`. Raise TransitionRefused. `blocks` is the longer schedule of EXTEND."""
    rule = TABLE.get((what, now.state))
    if rule is None:
        raise TransitionRefused(refusal(now.state, what))
    if what is Trigger.EXTEND:
        return _extended(now, plan, blocks)
    if rule.to is None:
        return _computed(now, what, plan, holds)
    if what is Trigger.BLOCK:
        return _next_block(now, plan)
    if rule.to is State.STEP:
        return _again(now, plan)
    return _to(now, rule.to)


def refusal(state: State, what: Trigger) -> str:
    starts = sorted(start for (trigger, start) in TABLE if trigger is what)
    return f"the delivery is {state}: {what.replace('_', ' ')} needs one that is {' or '.join(starts) or 'never so'}"


def _to(now: Position, state: State) -> Position:
    moved = replace(now, state=state, good_looks=0, holds=())
    ends_split = state in CLOSED and now.state in SPLIT
    stands_still = state in STILL and now.state is State.STEP
    if ends_split or stands_still or state in (State.ARMING, State.ROLLED_BACK):
        return replace(moved, share=0.0, shadow=0.0, generation=now.generation + 1)
    return moved


def _computed(now: Position, what: Trigger, plan: Plan, holds: tuple[Hold, ...]) -> Position:
    if what is Trigger.START:
        return _promoted(now, 0) if isinstance(plan.steps[0], Full) else _to(now, State.ARMING)
    if what is Trigger.PASS and getattr(plan.steps[now.step], "then", "") == "ask":
        return _to(now, State.WAITING)
    if what in (Trigger.PASS, Trigger.ADVANCE):
        return _enter(now, now.step + 1, plan)
    if what is Trigger.HOLD:
        return _held(now, holds)
    looks = now.good_looks + 1
    if looks < GOOD_LOOKS:
        return replace(now, good_looks=looks)
    return replace(_again(now, plan), holds_in_step=now.holds_in_step)


def _held(now: Position, holds: tuple[Hold, ...]) -> Position:
    if now.state is State.HOLDING:
        return replace(now, holds=holds, good_looks=0)
    count = now.holds_in_step + any(hold.code != FREEZE for hold in holds)
    state = State.PAUSED if count >= HOLDS_IN_STEP else State.HOLDING
    return replace(_to(now, state), holds=holds, holds_in_step=count)


def _again(now: Position, plan: Plan) -> Position:
    """Return the start of the same step with new counts; a switchback keeps its complete pairs."""
    entered, step = _enter(now, now.step, plan), plan.steps[now.step]
    if not isinstance(step, Switchback):
        return entered
    kept = now.block // 2 * 2
    return replace(entered, block=kept, share=_share_of(now.blocks, kept), clock_s=float(kept * step.block_s))


def _share_of(blocks: tuple[int, ...], block: int) -> float:
    """Return the share of a block; 0 after the last block, when the live version has the pool."""
    return float(blocks[block]) if block < len(blocks) else 0.0


def _enter(now: Position, step: int, plan: Plan) -> Position:
    """Return the start of a step with new counts."""
    if step == len(plan.steps):
        return _to(now, State.FINISHED)
    entered = plan.steps[step]
    if isinstance(entered, Full):
        return _promoted(now, step)
    fresh = Position(State.STEP, step, now.generation + 1, blocks=now.blocks)
    if isinstance(entered, Shadow):
        return replace(fresh, shadow=entered.sample)
    if isinstance(entered, Canary):
        return replace(fresh, share=entered.share)
    return replace(fresh, share=float(fresh.blocks[0]))


def _promoted(now: Position, step: int) -> Position:
    return Position(State.BAKING, step, now.generation + 1)


def _next_block(now: Position, plan: Plan) -> Position:
    """Return the next block, or the end after the last one, when the live version decides."""
    block = now.block + 1
    if not isinstance(plan.steps[now.step], Switchback):
        raise TransitionRefused(f"step {now.step + 1} is no switchback")
    if block > len(now.blocks):
        raise TransitionRefused("the switchback has no further block")
    return replace(now, block=block, share=_share_of(now.blocks, block), generation=now.generation + 1)


def _extended(now: Position, plan: Plan, blocks: tuple[int, ...]) -> Position:
    """Add blocks and keep the counts so far; a paused delivery continues."""
    if not isinstance(plan.steps[now.step], Switchback):
        raise TransitionRefused(f"step {now.step + 1} is no switchback: only a switchback is extended by pairs")
    if now.state is State.PAUSED:
        return _to(replace(now, blocks=blocks), State.ARMING)
    was_over = now.block == len(now.blocks)
    longer = replace(now, blocks=blocks)
    if now.state is State.HOLDING or not was_over:
        return longer
    return replace(longer, share=_share_of(blocks, now.block), generation=now.generation + 1)


# The outcome of a delivery: a word for REST, and an exit status for `manage.py deliver`
DELIVERED, REFUSED, GUARD, PERSON, NEEDS_PERSON, TIME = 0, 2, 3, 4, 5, 6
MEANING: Mapping[int, str] = {
    DELIVERED: "delivered",
    REFUSED: "refused",
    GUARD: "ended by a guard or a router",
    PERSON: "ended by a person",
    NEEDS_PERSON: "needs a person",
    TIME: "out of time",
}
WORDS: Mapping[int, str] = {
    DELIVERED: "delivered",
    GUARD: "guard",
    PERSON: "person",
    NEEDS_PERSON: "needs_person",
    TIME: "time",
}
_BY_STATE = {
    State.DELIVERED: DELIVERED,
    State.FINISHED: DELIVERED,
    State.REJECTED: PERSON,
    State.WITHDRAWN: PERSON,
    State.EXPIRED: TIME,
    State.MISSED: TIME,
    State.PROPOSED: NEEDS_PERSON,
    State.WAITING: NEEDS_PERSON,
    State.PAUSED: NEEDS_PERSON,
}
_BY_TRIGGER = {Trigger.FAIL: GUARD, Trigger.TRIP: GUARD, Trigger.GIVE_UP: TIME}  # how it was aborted or rolled back


def status(state: str, what: str) -> int | None:
    """Return the exit status; None while the delivery continues by itself. `what` is the latest transition."""
    known = State(state)
    if known in _BY_STATE:
        return _BY_STATE[known]
    if known in CLOSED:
        return _BY_TRIGGER.get(Trigger(what), PERSON)
    return None


def word(state: str, what: str) -> str:
    """Return the outcome; empty while the delivery continues by itself."""
    code = status(state, what)
    return "" if code is None else WORDS[code]
