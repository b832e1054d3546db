"""The contents of a delivery's page, computed from plain values. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controlplane.pages.delivery_pages.display import evidence, sentences, steps
from controlplane.pages.delivery_pages.display.evidence import EvidenceRow
from controlplane.pages.delivery_pages.display.facts import Facts
from controlplane.pages.delivery_pages.display.sentences import Next
from controlplane.pages.delivery_pages.display.steps import StepRow, percent
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.plan.types import Shadow
from controlplane.traffic.deliveries.states import OPEN, State

LIVE_SERVES = "Live serves every request while this stands still."
PLACES = {"done": "done", "now": "now", "next": "next", "later": "", "stopped": "ended here"}


@dataclass(frozen=True, slots=True)
class ShareBar:
    """The requests by version, as a bar of 100 units."""

    candidate: str  # width
    candidate_text: str
    base_text: str


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One comparison of a step that has ended."""

    step: str  # such as Canary 25 %
    word: str  # better, no worse, cannot tell, worse
    text: str


@dataclass(frozen=True, slots=True)
class Presentation:
    state: str
    word: str
    shape: str
    is_open: bool
    candidate: str
    base: str
    now: str
    live: str  # version that is live now, of an ended delivery; empty while it is open
    bar: ShareBar | None
    next: Next
    stopping: str
    why: str
    notice: str  # obstacle to continuing
    holds: tuple[str, ...]
    steps: tuple[tuple[StepRow, str], ...]  # each with a word for its place
    sessions: str  # sentence on where a session's requests go
    progress: str
    rows: tuple[EvidenceRow, ...]
    verdict: str
    results: tuple[ComparisonRow, ...]
    said: str  # text that screen readers read out when it changes


def shown(facts: Facts, findings: Sequence[GuardFinding] = ()) -> Presentation:
    word, shape = sentences.state_of(facts)
    stepper = steps.rows(facts)
    now = sentences.now(facts)
    return Presentation(
        state=facts.state,
        word=word,
        shape=shape,
        is_open=facts.state in OPEN,
        candidate=facts.candidate,
        base=facts.base,
        now=now,
        live="" if facts.state in OPEN else facts.live,
        bar=_bar(facts),
        next=sentences.following(facts),
        stopping=sentences.stopping(facts),
        why=sentences.ended(facts),
        notice=_notice(facts),
        holds=facts.holds,
        steps=tuple((row, PLACES[row.place]) for row in stepper),
        sessions=sentences.where_sessions_go(facts),
        progress=_progress(facts, len(stepper)),
        rows=evidence.rows(findings),
        verdict=evidence.verdict(findings, past=facts.state not in OPEN),
        results=tuple(_result_rows(facts)),
        said=f"The delivery: {word}. {now}",
    )


def _bar(facts: Facts) -> ShareBar | None:
    """Return the bar while requests are split; else None."""
    if facts.state is State.BAKING:
        return ShareBar("100", "100 %", "0 %")
    if facts.state is not State.STEP or facts.stands_still or isinstance(facts.current, Shadow):
        return None
    return ShareBar(f"{facts.share * 100:.1f}", percent(facts.share), percent(1 - facts.share))


def _result_rows(facts: Facts) -> Iterator[ComparisonRow]:
    for result in facts.results:
        for each in result.shown:
            yield ComparisonRow(steps.title(facts.plan.steps[result.step - 1]), each.word, each.text)


def _notice(facts: Facts) -> str:
    match facts.state:
        case State.HOLDING:
            return f"On hold. {LIVE_SERVES}"
        case State.PAUSED:
            return f"Paused: {facts.why}. {LIVE_SERVES}" if facts.why else f"Paused. {LIVE_SERVES}"
        case State.WAITING:
            return f"The step has passed and asks whether to go on. {LIVE_SERVES}"
        case State.STEP if facts.unwatched_s is not None:
            return "Not judged: no control worker looks at it."
        case State.STEP if facts.freeze_ends:
            return f"A freeze is in force: the step does not pass before {facts.freeze_ends}."
        case _:
            return ""


def _progress(facts: Facts, count: int) -> str:
    at = steps.position(facts)
    if 0 <= at < count:
        return steps.title(facts.plan.steps[at])
    return "not started" if at < 0 else f"all {count} passed"
