"""Writes open deliveries to Redis as lines of text, for Live and the wall, which read only Redis."""

from datetime import datetime, timedelta

from django.db.models import Q

from controlplane.pages.delivery_pages import reading
from controlplane.pages.delivery_pages.display import line, sentences
from controlplane.traffic.deliveries import selectors, states
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.states import OPEN, State
from fleet.redis import connect
from fleet.tries import tries
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import DeliveryLine, DeliveryLines

FAILED_SHOWN = timedelta(minutes=10)
ENDED_SHOWN = timedelta(minutes=2)
FAILED = (State.ABORTED, State.ROLLED_BACK)


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
        step=line.step_words(facts),
        figure=line.figure(findings),
        next_at=line.next_at(facts),
        since=delivery.state_at.timestamp(),
        why=facts.why,
        ended_by=delivery.by if states.status(delivery.state, delivery.what) == states.PERSON else "",
    )
