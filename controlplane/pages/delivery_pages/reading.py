"""Reads a delivery's rows for the pages: its facts, its evidence, its timeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.common.figures import seconds
from controlplane.pages.delivery_pages.display import evidence, over_time, sentences, steps
from controlplane.pages.delivery_pages.display.evidence import EvidenceRow, title_of, undecided
from controlplane.pages.delivery_pages.display.facts import Facts
from controlplane.pages.delivery_pages.display.over_time import StepReached, TimelineEntry, entry
from controlplane.pages.delivery_pages.display.sentences import Next
from controlplane.pages.delivery_pages.display.steps import StepRow, percent
from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.deliveries import results, selectors
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.step import unjudged_s, unwatched_since
from controlplane.traffic.deliveries.judging import PAUSED_S
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.moving import clock_s
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.types import NEEDED, Canary, ComparisonGuard, Plan, Shadow, Switchback
from controlplane.traffic.deliveries.states import OPEN, State
from controlplane.traffic.deliveries.timing import freezes
from controlplane.traffic.policies.views import ShownChange, changes
from router.contract.values.json_value import JsonObject
from router.contract.values.reading import read_value
from router.policy.schema.parameters import belongs_to_pool

TIMELINE = 100  # entries on the page
CHARTED = 300  # looks in a chart, evenly spaced


# The content of a delivery's page, computed from plain values
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

    step: str  # for example Canary 25 %
    word: str  # one of controlplane.traffic.deliveries.results.Word
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
    live: str  # for an ended delivery, the version that is live now; empty while it is open
    bar: ShareBar | None
    next: Next
    stopping: str
    why: str
    notice: str  # reason why the delivery does not continue
    holds: tuple[str, ...]
    steps: tuple[tuple[StepRow, str], ...]  # each with the word for its place
    sessions: str  # a sentence about where a session's requests are sent
    progress: str
    rows: tuple[EvidenceRow, ...]
    verdict: str
    results: tuple[ComparisonRow, ...]
    said: str  # text that screen readers announce when it changes


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
    """Return the bar while requests are split, otherwise None."""
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
    if facts.unjudged_s is not None:
        return f"Not judged: nobody has looked at it for {seconds(facts.unjudged_s)}."
    match facts.state:
        case State.HOLDING:
            return f"On hold. {LIVE_SERVES}"
        case State.PAUSED:
            return f"Paused: {facts.why}. {LIVE_SERVES}" if facts.why else f"Paused. {LIVE_SERVES}"
        case State.WAITING:
            return f"The step has passed and asks whether to continue. {LIVE_SERVES}"
        case State.STEP if facts.freeze_ends:
            return f"A freeze is in force: the step does not pass before {facts.freeze_ends}."
        case _:
            return ""


def _progress(facts: Facts, count: int) -> str:
    at = steps.position(facts)
    if 0 <= at < count:
        return steps.title(facts.plan.steps[at])
    return "not started" if at < 0 else f"all {count} passed"


def staged_changes(live: JsonObject, candidate: JsonObject) -> list[ShownChange]:
    """Return the changes. Those that concern the pool are marked, because they take effect only when the candidate is
    live."""
    return [replace(row, waits=belongs_to_pool(row.change.path)) for row in changes(live, candidate)]


def facts_of(delivery: Delivery, findings: Sequence[GuardFinding], now: datetime) -> Facts:
    plan, state = stored_plan.read(delivery.plan), State(delivery.state)
    frozen = selectors.keeps_from_going_on(delivery, now)
    looked_at = unwatched_since(delivery, now)
    since = delivery.promoted_at if state is State.BAKING else None
    return Facts(
        candidate=delivery.candidate.label,
        base=delivery.base.label,
        live=f"v{delivery.policy.live}",
        plan=plan,
        state=state,
        step=delivery.step,
        share=delivery.share,
        shadow=delivery.shadow,
        clock_s=(now - since).total_seconds() if since else clock_s(delivery, now),
        now=now.timestamp(),
        why=delivery.why,
        what=delivery.what,
        by=delivery.by,
        unjudged_s=unjudged_s(delivery, now),
        unwatched_s=(now - looked_at).total_seconds() if looked_at else None,
        undecided=undecided(findings) if findings else _awaited(plan, delivery.step),
        holds=tuple(hold.text for hold in delivery.why_held),
        approvals_missing=max(0, plan.approvals.needed - delivery.approvals.count()),
        freeze_ends=freezes.ends(*frozen) if frozen else "",
        block=delivery.block,
        blocks=len(delivery.blocks),
        results=results.read(delivery.results, plan),
        ends_at=_ends_at(delivery, plan),
    )


def _awaited(plan: Plan, step: int) -> tuple[str, ...]:
    """Return the comparisons that must be fine, for display before the step's first look."""
    if not isinstance(plan.steps[min(step, len(plan.steps) - 1)], Canary | Switchback):
        return ()
    guards = (guard for guard in plan.guards if isinstance(guard, ComparisonGuard) and guard.metric in NEEDED)
    return tuple(title_of(guard.metric, each) for guard in guards for each in guard.classes)


def _ends_at(delivery: Delivery, plan: Plan) -> float | None:
    if delivery.state == State.PROPOSED:
        return (delivery.proposed_at + timedelta(seconds=plan.approvals.expires_s)).timestamp()
    if delivery.state == State.PAUSED:
        return (delivery.state_at + timedelta(seconds=PAUSED_S)).timestamp()
    return None


def latest_look(delivery: Delivery) -> Look | None:
    """Return the latest look of the current step, because each step starts counting from zero; for an ended delivery,
    that of its last step. Looks during a hold or the bake show less.
    """
    if delivery.state in (State.DELIVERED, State.FINISHED):
        return delivery.looks.filter(state=State.STEP).first()
    look = delivery.looks.exclude(state=State.HOLDING).first()
    return look if look is None or not delivery.is_open or look.step == delivery.step else None


@dataclass(frozen=True, slots=True)
class DeliverySummary:
    """A delivery in a list."""

    delivery: Delivery
    word: str
    shape: str
    line: str
    next: str
    is_live: bool


def summary(delivery: Delivery) -> DeliverySummary:
    facts = facts_of(delivery, (), timezone.now())
    line = sentences.now(facts) if delivery.is_open else delivery.why
    next_one = sentences.following(facts).what
    return DeliverySummary(delivery, *sentences.state_of(facts), line, next_one, facts.state is State.BAKING)


def shown_of(delivery: Delivery, now: datetime) -> Presentation:
    look = latest_look(delivery)
    findings = look.found if look else ()
    return shown(facts_of(delivery, findings, now), findings)


def charts(delivery: Delivery) -> tuple[over_time.ClassCharts, ...]:
    """Return the charts; none if no step of the plan compares."""
    plan = stored_plan.read(delivery.plan)
    return over_time.charts(plan) if _comparing(plan) else ()


def _comparing(plan: Plan) -> list[int]:
    """Return the steps during which both versions serve requests."""
    return [at for at, step in enumerate(plan.steps) if isinstance(step, Canary | Switchback)]


def series(delivery: Delivery, now: datetime) -> dict[str, Any]:
    """Return the columns of the charts, up to now or to the delivery's end, and the events with their times."""
    plan = stored_plan.read(delivery.plan)
    steps = _comparing(plan)
    every = list(delivery.looks.filter(state=State.STEP, step__in=steps).order_by("pk").values_list("pk", flat=True))
    stride = -(-len(every) // CHARTED) or 1
    kept = [every[index] for index in range(len(every) - 1, -1, -stride)]  # includes the newest
    rows = delivery.looks.filter(pk__in=kept).order_by("pk")
    looks = [over_time.SeenLook(each.at.timestamp(), each.step, each.found) for each in rows]
    return {
        "at": [each.at for each in looks],
        "until": (delivery.ended_at or now).timestamp(),
        "series": {each.key: over_time.series(each, looks) for each in charts(delivery)},
        "exposure": over_time.exposure(plan, looks),
        "events": [{"at": each.at.timestamp(), "text": each.what} for each in reversed(timeline(delivery))],
    }


def timeline(delivery: Delivery) -> list[TimelineEntry]:
    """Return the entries, newest first."""
    plan = stored_plan.read(delivery.plan)
    entries = AuditEntry.objects.filter(subject=delivery.subject, action__startswith="delivery.").order_by("-pk")
    return [
        entry(each.at, each.action, each.actor_name, each.reason, read_value(each.after or {}, StepReached), plan)
        for each in entries[:TIMELINE]
    ]
