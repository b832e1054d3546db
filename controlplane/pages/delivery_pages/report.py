"""Writes open deliveries to Redis as lines of text, for Live and the wall, which read only Redis."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q

from controlplane.pages.delivery_pages import reading
from controlplane.pages.delivery_pages.display import sentences
from controlplane.pages.delivery_pages.display.evidence import name
from controlplane.pages.delivery_pages.display.facts import Facts
from controlplane.pages.delivery_pages.display.steps import length_s, title
from controlplane.traffic.deliveries import selectors, states
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan.types import Switchback
from controlplane.traffic.deliveries.states import IN_STEP, OPEN, State
from fleet.counted import times
from fleet.redis import connect
from fleet.tries import tries
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import DeliveryLine, DeliveryLines

FAILED_SHOWN = timedelta(minutes=10)
ENDED_SHOWN = timedelta(minutes=2)
FAILED = (State.ABORTED, State.ROLLED_BACK)


# A delivery in one line, for Live and the wall. v43 → v44 canary 25 % · heavy 1.04× (0.97–1.12×) · 4:10


def step_words(facts: Facts) -> str:
    """Describe the step, for example "canary 25 %"; empty if no step is in effect."""
    if facts.state is State.BAKING:
        return "everyone"
    if facts.state not in IN_STEP and facts.state is not State.ARMING:
        return ""
    words = title(facts.current)
    words = words[0].lower() + words[1:]
    if isinstance(facts.current, Switchback) and facts.state is State.STEP:
        words += f" {min(facts.block + 1, facts.blocks)} of {facts.blocks}"
    return f"{words}, live serves all" if facts.stands_still else words


def figure(findings: Sequence[GuardFinding]) -> str:
    """Describe the most important comparison: a failing one, otherwise the one with the highest lower bound."""
    known = [each for each in findings if each.needed and each.estimate is not None]
    if not known:
        return ""
    worst = max(known, key=lambda each: (each.verdict == "fail", (-math.inf if each.lower is None else each.lower)))
    low, high = ("?" if each is None else f"{1 + each:.2f}" for each in (worst.lower, worst.upper))
    metric = "" if worst.metric == "ttft" else f" {name(worst).split()[-1]}"
    return f"{worst.request_class}{metric} {times(1 + (worst.estimate or 0.0))} ({low}–{high}×)"


def next_at(facts: Facts) -> float | None:
    """Return the Unix time at which the step or the bake can end; None while its clock is stopped."""
    if facts.state not in (State.STEP, State.BAKING) or facts.stands_still or facts.unjudged_s is not None:
        return None
    step = facts.plan.steps[-1] if facts.state is State.BAKING else facts.current
    left = length_s(step) - facts.clock_s
    return round(facts.now + left, 1) if left > 0 else None


def report(now: datetime) -> DeliveryLines:
    lines = []
    with tries() as attempt:
        for each in shown(now):
            with attempt(f"delivery {each.pk}"):
                lines.append(_line(each, now))
        value = DeliveryLines(at=now.timestamp(), lines=tuple(lines))
        connect().set(redis_keys.DELIVERIES, codec.encode(value), ex=redis_keys.DELIVERIES_TTL_S)
    return value


def shown(now: datetime) -> list[Delivery]:
    """Return the latest delivery of each policy that is open or ended recently."""
    recent = Q(state__in=FAILED, ended_at__gt=now - FAILED_SHOWN) | Q(ended_at__gt=now - ENDED_SHOWN)
    found = selectors.deliveries().filter(Q(state__in=OPEN) | recent).order_by("policy__name", "-pk")
    latest: dict[int, Delivery] = {}
    for each in found:
        latest.setdefault(each.policy_id, each)
    return list(latest.values())


def _line(delivery: Delivery, now: datetime) -> DeliveryLine:
    look = reading.latest_look(delivery)
    findings = look.found if look else ()
    facts = reading.facts_of(delivery, findings, now)
    return DeliveryLine(
        delivery=delivery.pk,
        policy=delivery.policy.name,
        pools=facts.plan.pools,
        base=facts.base,
        candidate=facts.candidate,
        state=facts.state,
        word=sentences.WORDS[facts.state][0],
        step=step_words(facts),
        figure=figure(findings),
        next_at=next_at(facts),
        since=delivery.state_at.timestamp(),
        why=facts.why,
        ended_by=delivery.by if states.status(delivery.state, delivery.what) == states.PERSON else "",
    )
