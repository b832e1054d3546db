"""Transitions without a person: by the judge's looks, a router's stop, the clock, and freezes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import redis
import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.people.audit.services import SYSTEM, Actor
from controlplane.traffic.deliveries import selectors
from controlplane.traffic.deliveries.going_live.rules import REFUSALS, Change, Refusal, Way, check, refusals, said
from controlplane.traffic.deliveries.judge.look import Proposal
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.moving import TransitionRequest, move, move_and_tell
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.types import Full, Plan, Shadow
from controlplane.traffic.deliveries.states import FREEZE, SPLIT, Hold, Origin, State, Trigger
from controlplane.traffic.deliveries.timing import freezes, schedules
from controlplane.traffic.deliveries.timing.durations import words
from controlplane.traffic.policies import publication
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.errors import Conflict
from router.contract.redis.delivery import StopValue

log = structlog.get_logger(__name__)
ARM_S = 10  # time for every live router to acknowledge both versions
PAUSED_S = 24 * 3600  # length of a pause after which the delivery ends
WATCHED = frozenset({State.STEP, State.HOLDING, State.BAKING})  # states in which the judge looks at a delivery
JUDGE = Actor("system", "judge")
ROUTER = Actor("system", "router")


# The judge


def judge_step(delivery: Delivery, proposal: Proposal, now: datetime | None = None) -> Delivery:
    """Store the look and apply its proposal, unless the delivery has changed since the caller read it."""
    now = now or timezone.now()
    wanted, generation = _tempered(delivery, proposal, now), delivery.generation
    try:
        with transaction.atomic():
            _store_look(delivery, proposal, now)
            delivery = _apply(delivery, wanted, now)
    except Conflict as error:
        return _lost(delivery, error)
    if delivery.generation != generation:
        publication.tell(delivery.policy)
    return delivery


def _store_look(delivery: Delivery, proposal: Proposal, now: datetime) -> None:
    Look.objects.create(
        delivery=delivery,
        at=now,
        state=delivery.state,
        step=delivery.step,
        generation=delivery.generation,
        findings=[each.as_dict() for each in proposal.findings],
        proposal=proposal.what,
        why=proposal.why,
        facts=msgspec.to_builtins(proposal.facts) if proposal.facts else {},
    )


def _apply(delivery: Delivery, wanted: TransitionRequest, now: datetime) -> Delivery:
    if wanted.what is not Trigger.STAY:
        return move(delivery, wanted, now)
    if wanted.memory is not None:
        # The revision stays the same: only the judge reads its memory, and a person's button must not fail because of
        # it.
        memory = msgspec.to_builtins(wanted.memory, str_keys=True)
        Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(memory=memory)
        delivery.refresh_from_db()
    return delivery


def _tempered(delivery: Delivery, proposal: Proposal, now: datetime) -> TransitionRequest:
    """Return the proposal as a request; during a freeze no step passes and no hold ends."""
    wanted = TransitionRequest(
        proposal.what,
        Origin.JUDGE,
        JUDGE,
        proposal.why or ("three good looks in a row" if proposal.what is Trigger.GOOD else ""),
        proposal.holds,
        proposal.findings,
        proposal.memory,
    )
    frozen = _frozen(delivery, now) if proposal.what in (Trigger.PASS, Trigger.GOOD, Trigger.HOLD) else ()
    wanted = replace(wanted, holds=(*wanted.holds, *frozen))
    stays = frozen and proposal.what in (Trigger.PASS, Trigger.GOOD)
    return replace(wanted, what=Trigger.STAY) if stays or _is_known(delivery, wanted) else wanted


def _is_known(delivery: Delivery, wanted: TransitionRequest) -> bool:
    """Return whether a hold continues for the same reasons, so that nothing has to be written."""
    codes = [hold.code for hold in wanted.holds]
    held = [hold.code for hold in delivery.why_held]
    return wanted.what is Trigger.HOLD and delivery.state == State.HOLDING and not delivery.good_looks and codes == held


def _lost(delivery: Delivery, error: Refusal) -> Delivery:
    log.info("delivery.look_lost", delivery=delivery.pk, why=str(error))
    return selectors.delivery(delivery.pk)


def stopped(delivery: Delivery, stop: StopValue, now: datetime | None = None) -> Delivery:
    """Record a stop that a router, or a person without access to the database, wrote to Redis."""
    person = stop.by == "person"
    what = Trigger.ABORT if person else Trigger.TRIP
    by = Origin.PERSON if person else Origin.ROUTER
    why = f"{stop.why} (request {stop.request})" if stop.request else stop.why
    actor = Actor("system", "stop without the database") if person else ROUTER
    return _moved(delivery, TransitionRequest(what, by, actor, why), now)


def _moved(delivery: Delivery, wanted: TransitionRequest, now: datetime | None) -> Delivery:
    try:
        return move_and_tell(delivery, wanted, now)
    except REFUSALS as error:
        return _lost(delivery, error)


def away(delivery: Delivery, looked_at: datetime, now: datetime) -> Delivery:
    """Pause, because the judge was absent until routers gave up the split, and the step's counts have a gap."""
    text = f"the judge was away from {_clock(looked_at)} to {_clock(now)}; live served every request meanwhile"
    return _moved(delivery, _system(Trigger.PAUSE, f"{text}; resume to begin the step again"), now)


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S} UTC"


# The clock


def tick(delivery: Delivery, now: datetime | None = None) -> Delivery:
    """Make the transition that is due by the clock: a start, an acknowledgement, a freeze, the end of a wait."""
    now = now or timezone.now()
    wanted = _due(delivery, stored_plan.read(delivery.plan), now)
    return delivery if wanted is None else _moved(delivery, wanted, now)


def _system(what: Trigger, why: str, asked: Callable[[], None] | None = None) -> TransitionRequest:
    return TransitionRequest(what, Origin.SYSTEM, SYSTEM, why, check=asked)


def _due(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    if delivery.state in SPLIT:
        live = policies.live_version(delivery.policy)
        if live.number != delivery.base.number:
            return _system(Trigger.ABORT, f"v{live.number} has gone live meanwhile")
    due = DUE.get(State(delivery.state))
    return (due and due(delivery, plan, now)) or _freezing(delivery, plan, now)


def _over(since: datetime, seconds: float, now: datetime) -> bool:
    return now >= since + timedelta(seconds=seconds)


def _proposed(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    if not _over(delivery.proposed_at, plan.approvals.expires_s, now):
        return None
    return _system(Trigger.EXPIRE, f"not approved within {words(plan.approvals.expires_s)}")


def _ready(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    live = policies.live_version(delivery.policy)
    if live.number != delivery.base.number:
        return _system(Trigger.MISS, f"v{live.number} is live by now")
    if delivery.starts_at is None or plan.start is None or now < delivery.starts_at:
        return None
    change = Change(Way.START, delivery.policy, SYSTEM, delivery=delivery, at=now)
    refused = refusals(change)
    if schedules.is_missed(delivery.starts_at, plan.start.latest_s, now):
        why = "; ".join(map(said, refused))
        return _system(Trigger.MISS, why or f"not started within {words(plan.start.latest_s)} of its time")
    if refused:
        return None
    return _system(
        Trigger.START, f"its time, {plan.start.at.replace('T', ' ')} {plan.start.zone}", partial(check, change)
    )


def _arming(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    try:
        behind = publication.behind_generation(delivery.policy.name, delivery.generation, plan.pools)
    except redis.RedisError:
        behind = ["Redis is away"]
    if not behind:
        return _system(Trigger.ARMED, "every live router has acknowledged both versions")
    if _over(delivery.state_at, ARM_S, now):
        return _system(Trigger.LATE, f"not acknowledged within {ARM_S} s: {', '.join(behind)}")
    return None


def _holding(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    if delivery.error_at is None or _frozen(delivery, now) or not _over(delivery.error_at, plan.hold.error_s, now):
        return None
    texts = "; ".join(hold.text for hold in delivery.why_held)
    return _system(Trigger.PAUSE, f"held for {words(plan.hold.error_s)}: {texts}")


def _paused(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    if not _over(delivery.state_at, PAUSED_S, now):
        return None
    return _system(Trigger.GIVE_UP, f"paused for {PAUSED_S // 3600} h")


def _baking(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    last = plan.steps[-1]
    bake_s = last.bake_s if isinstance(last, Full) else 0
    if not _over(delivery.state_at, bake_s, now):
        return None
    return _system(Trigger.DELIVER, f"live for {words(bake_s)}")


DUE: dict[State, Callable[[Delivery, Plan, datetime], TransitionRequest | None]] = {
    State.PROPOSED: _proposed,
    State.READY: _ready,
    State.ARMING: _arming,
    State.HOLDING: _holding,
    State.PAUSED: _paused,
    State.BAKING: _baking,
}


# Freezes


def _freezing(delivery: Delivery, plan: Plan, now: datetime) -> TransitionRequest | None:
    """Return the transition for a freeze that has begun during the delivery."""
    if delivery.state not in (State.STEP, State.HOLDING) or isinstance(plan.steps[delivery.step], Shadow):
        return None
    frozen = selectors.freeze_of(delivery, now)
    if frozen is None:
        return None
    text = freezes.said(*frozen)
    if frozen[0].behaviour == "abort":
        return _system(Trigger.ABORT, text)
    others = tuple(hold for hold in delivery.why_held if hold.code != FREEZE)
    if len(others) < len(delivery.why_held):
        return None
    return TransitionRequest(Trigger.HOLD, Origin.SYSTEM, SYSTEM, text, (*others, Hold(FREEZE, text)))


def _frozen(delivery: Delivery, now: datetime) -> tuple[Hold, ...]:
    """Return the hold of a freeze in effect; empty in a state that freezes do not affect."""
    text = _freeze_text(delivery, now) if delivery.state in (State.STEP, State.HOLDING) else ""
    return (Hold(FREEZE, text),) if text else ()


def _freeze_text(delivery: Delivery, now: datetime) -> str:
    found = selectors.freeze_of(delivery, now)
    return freezes.said(*found) if found is not None else ""
