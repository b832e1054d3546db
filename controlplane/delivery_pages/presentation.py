"""Everything that the page of a delivery shows, from plain values. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.plan import Shadow
from controlplane.deliveries.states import CARRIES, OPEN, State
from controlplane.delivery_pages.display import evidence, sentences, steps
from controlplane.delivery_pages.display.evidence import EvidenceRow
from controlplane.delivery_pages.display.facts import Facts
from controlplane.delivery_pages.display.sentences import Next
from controlplane.delivery_pages.display.steps import StepRow, percent

PLACES = {"done": "done", "now": "now", "next": "next", "later": "", "stopped": "ended here"}


@dataclass(frozen=True, slots=True)
class Bar:
    """Requests by version, as a bar of 100 units."""

    candidate: str  # width
    candidate_text: str
    base_text: str


@dataclass(frozen=True, slots=True)
class Shown:
    state: str
    word: str
    shape: str
    is_open: bool
    candidate: str
    base: str
    now: str
    bar: Bar | None
    next: Next
    stopping: str
    why: str
    notice: str  # what keeps it from going on
    holds: tuple[str, ...]
    steps: tuple[tuple[StepRow, str], ...]  # with the word for its place
    progress: str
    rows: tuple[EvidenceRow, ...]
    verdict: str
    said: str  # for screen readers, whenever it changes


def shown(facts: Facts, findings: Sequence[GuardFinding] = ()) -> Shown:
    word, shape = sentences.WORDS[facts.state]
    stepper = steps.rows(facts)
    now = sentences.now(facts)
    return Shown(
        state=facts.state,
        word=word,
        shape=shape,
        is_open=facts.state in OPEN,
        candidate=facts.candidate,
        base=facts.base,
        now=now,
        bar=_bar(facts),
        next=sentences.following(facts),
        stopping=sentences.stopping(facts),
        why=sentences.ended(facts),
        notice=_notice(facts),
        holds=facts.holds,
        steps=tuple((row, PLACES[row.place]) for row in stepper),
        progress=_progress(facts, len(stepper)),
        rows=evidence.rows(findings),
        verdict=evidence.verdict(findings),
        said=f"The delivery is {word}. {now}",
    )


def _bar(facts: Facts) -> Bar | None:
    """While requests are split, or could be."""
    if facts.state is State.BAKING:
        return Bar("100", "100 %", "0 %")
    if facts.state not in CARRIES or isinstance(facts.current, Shadow):
        return None
    return Bar(f"{facts.share * 100:.1f}", percent(facts.share), percent(1 - facts.share))


def _notice(facts: Facts) -> str:
    match facts.state:
        case State.HOLDING:
            return "On hold: the step's clock stands, the share stays."
        case State.PAUSED:
            return f"Paused: {facts.why}" if facts.why else "Paused."
        case State.WAITING:
            return "The step has passed and asks whether to go on."
        case _:
            return ""


def _progress(facts: Facts, count: int) -> str:
    at = steps.position(facts)
    if 0 <= at < count:
        return f"step {at + 1} of {count}"
    return "not started" if at < 0 else f"all {count} passed"
