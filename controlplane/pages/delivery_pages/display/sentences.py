"""Sentences about a delivery: which version serves which requests, what happens next and when, how to stop it. Pure.
Sentences about an open delivery are in the present tense, those about an ended one in the past tense.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controlplane.common.figures import seconds
from controlplane.pages.delivery_pages.display.facts import Facts
from controlplane.pages.delivery_pages.display.steps import length_s, percent, title
from controlplane.traffic.deliveries.plan.types import Canary, Full, Shadow, Step, Switchback
from controlplane.traffic.deliveries.states import CLOSED, IN_STEP, State, Trigger
from controlplane.traffic.deliveries.timing.durations import countdown
from controlplane.traffic.policies.selectors import listed


@dataclass(frozen=True, slots=True)
class Next:
    """The next event: `what` in `in_s` seconds if `provided` holds; otherwise `otherwise` at `otherwise_at`. Empty
    parts are left out."""

    what: str
    in_s: float | None = None
    provided: str = ""
    otherwise: str = ""
    otherwise_at: float | None = None  # Unix seconds

    @property
    def in_text(self) -> str:
        """Return the countdown, such as 4:10, which the browser continues."""
        return "" if self.in_s is None else countdown(self.in_s)


WORDS: Mapping[State, tuple[str, str]] = {  # word and status shape
    State.PROPOSED: ("waits for approval", "unseen"),
    State.READY: ("ready to start", "unseen"),
    State.ARMING: ("waiting for routers", "loading"),
    State.STEP: ("running", "running"),
    State.HOLDING: ("on hold", "warning"),
    State.WAITING: ("asks to continue", "warning"),
    State.PAUSED: ("paused", "paused"),
    State.BAKING: ("live, watching", "running"),
    State.DELIVERED: ("delivered", "done"),
    State.FINISHED: ("finished", "done"),
    State.ABORTED: ("aborted", "failed"),
    State.ROLLED_BACK: ("rolled back", "failed"),
    State.REJECTED: ("rejected", "refused"),
    State.EXPIRED: ("expired", "cancelled"),
    State.WITHDRAWN: ("withdrawn", "cancelled"),
    State.MISSED: ("missed its start", "cancelled"),
}


def state_of(facts: Facts) -> tuple[str, str]:
    """Return the state's term and status shape."""
    return WORDS[facts.state] if facts.unjudged_s is None else ("not judged", "warning")


def now(facts: Facts) -> str:
    """Describe which version decides which requests or, for an ended delivery, which version did."""
    where = pools_words(facts.plan.pools)
    if facts.state in CLOSED:
        return _decided(facts, where)
    if facts.state is State.BAKING:
        return f"{facts.candidate} decides every request of {where}."
    if facts.state not in IN_STEP:
        return f"{facts.base} decides every request of {where}."
    if facts.unwatched_s is not None:
        ago = seconds(facts.unwatched_s)
        return (
            f"{facts.base} decides every request of {where}: routers gave up this step, as nobody judged it for {ago}."
        )
    if facts.stands_still:
        return f"{facts.base} decides every request of {where} while this stands still."
    match facts.current:
        case Shadow() if facts.shadow:
            each = "each" if facts.shadow == 1 else f"{percent(facts.shadow)} of them"
            return f"{facts.base} decides every request of {where}; {facts.candidate} only tries to decide {each}."
        case Switchback(block_s=block_s):
            decides = facts.candidate if facts.share else facts.base
            return f"{decides} decides every request of {where}: {block_words(facts, block_s)}."
        case _:
            return _split(facts, where)


NEVER_BEGUN = (State.REJECTED, State.EXPIRED, State.WITHDRAWN, State.MISSED)
REPLACED: Mapping[str, str] = {
    Trigger.OVERTAKE: "another version went live",
    Trigger.ROLL_BACK: "an older version came back",
}


def _decided(facts: Facts, where: str) -> str:
    """Describe which version decided when the delivery ended."""
    if facts.state in NEVER_BEGUN:
        return f"It never began: {facts.base} decided every request of {where} throughout."
    if facts.what in REPLACED:
        return f"It ended when {REPLACED[facts.what]} for every request of {where}."
    if facts.state is State.ROLLED_BACK:
        return f"When it ended, the values of {facts.base} decided every request of {where} again."
    decides = facts.candidate if facts.state is State.DELIVERED else facts.base
    return f"When it ended, {decides} decided every request of {where}."


def where_sessions_go(facts: Facts) -> str:
    """Describe where the requests of a session are sent, in the delivery's tense."""
    past = facts.state in CLOSED
    if isinstance(facts.current, Switchback):
        return f"In a switchback all sessions {'changed' if past else 'change'} sides with each block."
    return f"A session {'stayed' if past else 'stays'} with its arm."


def pools_words(pools: tuple[str, ...]) -> str:
    return f"pool{'s' * (len(pools) > 1)} {listed(pools)}" if pools else "no pool"


def block_words(facts: Facts, block_s: float) -> str:
    """Describe the block of a switchback: block 3 of 8, 2:10 left."""
    if facts.block >= facts.blocks:
        return "every block is over, and answers that have not ended are waited for"
    left = countdown((facts.block + 1) * block_s - facts.clock_s)
    return f"block {facts.block + 1} of {facts.blocks}, {left} left; the versions take turns"


def _split(facts: Facts, where: str) -> str:
    rest = f"{facts.base} decides the other {percent(1 - facts.share)}"
    return f"{facts.candidate} decides {percent(facts.share)} of the requests of {where}; {rest}."


def following(facts: Facts) -> Next:
    """Return the next event if nobody acts."""
    if facts.unwatched_s is not None:
        return Next("It pauses as soon as someone looks at it again")
    if facts.unjudged_s is not None:
        return Next("It continues as soon as someone looks at it again")
    return NEXT[facts.state](facts)


def _proposed(facts: Facts) -> Next:
    count = facts.approvals_missing
    what = f"Ready to start after {count} approval{'s' * (count != 1)}"
    return Next(what, otherwise="it expires", otherwise_at=facts.ends_at)


def _ready(facts: Facts) -> Next:
    first, start = title(facts.plan.steps[0]), facts.plan.start
    if start is None:
        return Next(f"{first}, when somebody presses Start")
    return Next(f"{first} starts by itself on {start.at.replace('T', ' at ')} ({start.zone})")


def _arming(facts: Facts) -> Next:
    what = f"{title(facts.current)}, as soon as every router has loaded {facts.candidate}"
    return Next(what, otherwise="it pauses within 10 s")


def _step(facts: Facts) -> Next:
    left, undecided = length_s(facts.current) - facts.clock_s, facts.undecided
    named = f"{listed(undecided)} {'is' if len(undecided) == 1 else 'are'} enough to go on" if undecided else ""
    what = promotion(facts)
    if left > 0:
        return Next(what, left, f"if {named}" if named else "if no guard fails", *_otherwise(facts))
    if named:
        return Next(what, None, f"as soon as {named}", *_otherwise(facts))
    return Next(what, 0.0)


def _otherwise(facts: Facts) -> tuple[str, float | None]:
    if isinstance(facts.current, Canary) and facts.undecided:
        return "it pauses", facts.now + facts.current.max_s - facts.clock_s
    return "", None


def promotion(facts: Facts) -> str:
    """Describe what follows a passed step."""
    step = facts.following
    if step is None:
        return f"the plan ends and {facts.base} stays live"
    if isinstance(facts.current, Canary) and facts.current.then:
        return f"it asks to advance to {_lower(_name(step, facts))}"
    return _name(step, facts)


def _name(step: Step, facts: Facts) -> str:
    return f"{facts.candidate} for everyone" if isinstance(step, Full) else title(step)


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _holding(facts: Facts) -> Next:
    if facts.freeze_ends:
        return Next(f"The step begins again when the freeze ends at {facts.freeze_ends}")
    return Next("The step begins again after three good looks", otherwise="it pauses")


def _waiting(facts: Facts) -> Next:
    step = facts.following
    return Next(f"{_name(step, facts) if step else 'The end'}, when somebody presses Advance")


def _paused(facts: Facts) -> Next:
    return Next("Nothing until somebody presses Resume", otherwise="it is aborted", otherwise_at=facts.ends_at)


def _baking(facts: Facts) -> Next:
    left = length_s(facts.plan.steps[-1]) - facts.clock_s
    return Next("Delivered", max(0.0, left), f"if the pool stays healthy; otherwise {facts.base} comes back")


def _ended(text: str) -> Callable[[Facts], Next]:
    return lambda _: Next(text)


NEXT: Mapping[State, Callable[[Facts], Next]] = {
    State.PROPOSED: _proposed,
    State.READY: _ready,
    State.ARMING: _arming,
    State.STEP: _step,
    State.HOLDING: _holding,
    State.WAITING: _waiting,
    State.PAUSED: _paused,
    State.BAKING: _baking,
    State.DELIVERED: _ended("Nothing: the delivery is complete"),
    State.FINISHED: _ended("Nothing: the plan was to gather evidence only"),
    State.ABORTED: _ended("Nothing: another attempt needs a new delivery"),
    State.ROLLED_BACK: _ended("Nothing: another attempt needs a new delivery"),
    State.REJECTED: _ended("Nothing: the draft can be changed and proposed again"),
    State.EXPIRED: _ended("Nothing: it can be proposed again"),
    State.WITHDRAWN: _ended("Nothing: the document is a draft again"),
    State.MISSED: _ended("Nothing: it can be proposed again"),
}


def stopping(facts: Facts) -> str:
    """Describe how to stop the delivery."""
    if facts.state is State.BAKING:
        return f"Abort publishes the document of {facts.base} again; every request is back within a second."
    if facts.state is State.STEP and not facts.stands_still:
        return f"Abort gives every request back to {facts.base} within a second."
    if facts.step or facts.state in IN_STEP:
        return f"Abort ends it; {facts.base} decides every request already."
    return "Abort ends it before any request is affected."


ENDED_BY: Mapping[str, str] = {
    Trigger.FAIL: "Stopped by guard",
    Trigger.TRIP: "Stopped by router",
    Trigger.GIVE_UP: "It was paused for too long",
    Trigger.OVERTAKE: "Another publication ended it",
}


def ended(facts: Facts) -> str:
    """Describe who or what ended the delivery, and why."""
    cause = ENDED_BY.get(facts.what, f"By {facts.by}" if facts.by else "")
    why = facts.why or "no reason was given"
    return f"{cause}: {why}" if cause else why
