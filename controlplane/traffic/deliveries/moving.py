"""One transition: a compare-and-set on the delivery's revision, its effects and its audit entry in one transaction.
Redis is written afterwards; republish_missing restores values that Redis loses.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import structlog
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from msgspec.structs import replace

from controlplane.people.audit import services as audit
from controlplane.people.audit.services import SYSTEM, Actor
from controlplane.people.notices.services import notify
from controlplane.traffic.deliveries import results, states
from controlplane.traffic.deliveries.judge import memory
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.memory import Memory
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.types import Plan
from controlplane.traffic.deliveries.states import CLOSED, FREEZE, Hold, Origin, Position, State, Trigger
from controlplane.traffic.policies import publication, versions
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Draft
from controlplane.traffic.policies.selectors import pools_of
from fleet.counted import percent
from router.contract.values.json_value import JsonObject
from router.contract.values.reading import read_value
from router.policy.schema import document as documents

log = structlog.get_logger(__name__)
QUIET = frozenset({Trigger.STAY, Trigger.GOOD})  # triggers that are audited only if they change the state


@dataclass(frozen=True, slots=True)
class TransitionRequest:
    """A requested change of a delivery's state by a person, the judge or the system."""

    what: Trigger
    by: Origin
    actor: Actor = SYSTEM
    why: str = ""
    holds: tuple[Hold, ...] = ()
    findings: tuple[GuardFinding, ...] = ()
    memory: Memory | None = None  # memory of the judge
    emergency: str = ""  # reason why an administrator bypasses approvals
    pairs: int = 0  # pairs of blocks added by EXTEND
    check: Callable[[], None] | None = None  # raises a rule's refusal; called in the transaction


def clock_s(delivery: Delivery, now: datetime) -> float:
    """Return the seconds for which the step has run, excluding its holds."""
    if delivery.clock_at is None:
        return delivery.step_clock_s
    return delivery.step_clock_s + max((now - delivery.clock_at).total_seconds(), 0.0)


def position_of(delivery: Delivery, now: datetime) -> Position:
    return replace(read_value(delivery, Position, from_attributes=True), clock_s=clock_s(delivery, now))


def move_and_tell(
    delivery: Delivery, wanted: TransitionRequest, now: datetime | None = None, *, as_it_is: bool = False
) -> Delivery:
    """Make the transition, then write Redis if it changes what routers do. With `as_it_is`, start from the delivery's
    current state, even if others have changed it."""
    generation = delivery.generation
    with transaction.atomic():
        if as_it_is:
            hold(delivery)
        delivery = move(delivery, wanted, now)
    if delivery.generation != generation:
        publication.tell(delivery.policy)
    return delivery


def hold(delivery: Delivery) -> None:
    """Lock the delivery and read it again; nobody else can change it until the transaction ends."""
    versions.lock(delivery.policy.name)
    Delivery.objects.filter(pk=delivery.pk).update(revision=F("revision"))
    delivery.refresh_from_db()


def move(delivery: Delivery, wanted: TransitionRequest, now: datetime | None = None) -> Delivery:
    """Make the transition in a transaction, which may be the caller's. Raise Conflict if the state does not allow it or
    someone else was first.
    The caller publishes to the routers afterwards.
    """
    now = now or timezone.now()
    plan, before = stored_plan.read(delivery.plan), position_of(delivery, now)
    try:
        after = _checked(delivery, before, wanted, plan)
    except states.TransitionRefused as error:
        raise Conflict(str(error), kind="state", current=delivery.etag) from None
    with transaction.atomic():
        versions.lock(delivery.policy.name)
        if wanted.check is not None:
            wanted.check()
        if not _claim(delivery, before, after, wanted, now):
            raise moved(delivery)
        _effects(delivery, State(after.state), wanted)
        _record(delivery, before, after, wanted)
        _notify(delivery, before, after, wanted)
    delivery.refresh_from_db()
    log.info(
        "delivery.moved", delivery=delivery.pk, what=wanted.what, state=delivery.state, generation=delivery.generation
    )
    return delivery


def _checked(delivery: Delivery, before: Position, wanted: TransitionRequest, plan: Plan) -> Position:
    rule = states.TABLE.get((wanted.what, before.state))
    if rule is not None and wanted.by not in rule.who:
        raise states.TransitionRefused(f"{wanted.what} is not for the {wanted.by}")
    blocks = before.blocks or drawn(delivery.salt, plan.pairs)
    longer = drawn(delivery.salt, len(blocks) // 2 + wanted.pairs) if wanted.pairs else blocks
    return states.next_position(replace(before, blocks=blocks), wanted.what, plan, holds=wanted.holds, blocks=longer)


def drawn(salt: str, pairs: int) -> tuple[int, ...]:
    """Draw the blocks of a switchback: the candidate has one block of each pair. Additional pairs extend the same
    sequence."""
    draw = random.Random(f"{salt} blocks")  # noqa: S311  (reproducible, not secret)
    schedule = ((0, 1) if draw.random() < 0.5 else (1, 0) for _ in range(pairs))
    return tuple(share for pair in schedule for share in pair)


def _claim(delivery: Delivery, before: Position, after: Position, wanted: TransitionRequest, now: datetime) -> bool:
    said = {"what": str(wanted.what), "why": wanted.why, "by": wanted.actor.name}
    claimed = Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(
        revision=delivery.revision + 1,
        clock_at=now if after.state is State.STEP else None,
        **msgspec.to_builtins(after),
        **_times(before, after, now),
        **_since_error(delivery, after, now),
        **_results(delivery, before, after, wanted, now),
        **(said if after.state != before.state or wanted.what not in QUIET else {}),
        **_memory(delivery, before, after, wanted),
        **({"emergency": wanted.emergency} if wanted.emergency else {}),
    )
    return bool(claimed)


def _memory(delivery: Delivery, before: Position, after: Position, wanted: TransitionRequest) -> dict[str, object]:
    """Return the judge's new memory, if any; at the start of a step, only the part that still counts."""
    starts = _starts_step(before, after) or after.step != before.step
    if wanted.memory is None and not starts:
        return {}
    kept = memory.load(delivery.memory) if wanted.memory is None else wanted.memory
    if starts:
        kept = memory.at_start(kept, after.block)
    return {"memory": msgspec.to_builtins(kept, str_keys=True)}


def _since_error(delivery: Delivery, after: Position, now: datetime) -> dict[str, datetime | None]:
    """Return the time when the hold's error began; time inside a freeze does not count."""
    counts = after.state is State.HOLDING and all(hold.code != FREEZE for hold in after.holds)
    return {"error_at": (delivery.error_at or now) if counts else None}


def _results(
    delivery: Delivery, before: Position, after: Position, wanted: TransitionRequest, now: datetime
) -> dict[str, object]:
    """Return the result of a step that stops or ends; it is stored with the delivery, as looks are deleted after 30
    days."""
    if before.state is not State.STEP or (after.state, after.step) == (State.STEP, before.step):
        return {}
    last = None if wanted.findings else delivery.looks.filter(state=State.STEP, step=before.step).first()
    findings = last.found if last is not None else wanted.findings
    others = [each for each in delivery.results if each["step"] != before.step + 1]
    return {"results": [*others, results.of_step(before.step, wanted.what, now, findings)]}


def _times(before: Position, after: Position, now: datetime) -> dict[str, datetime]:
    times = {}
    if after.state != before.state or after.step != before.step:
        times["state_at"] = now
    if _starts_step(before, after):
        times["step_started_at"] = now
    if before.state is State.READY and after.state in (State.ARMING, State.BAKING):
        times["started_at"] = now
    if before.state is State.PROPOSED and after.state is State.READY:
        times["ready_at"] = now
    if after.state is State.BAKING and before.state is not State.BAKING:
        times["promoted_at"] = now
    if after.state in CLOSED:
        times["ended_at"] = now
    return times


def _starts_step(before: Position, after: Position) -> bool:
    return after.state is State.STEP and (before.state is not State.STEP or after.step != before.step)


def _effects(delivery: Delivery, state: State, wanted: TransitionRequest) -> None:
    if state is State.BAKING:
        _promote(delivery)
    if state is State.ROLLED_BACK and wanted.what is not Trigger.ROLL_BACK:  # a rollback itself adds the version
        _bring_back(delivery, wanted)
    if state is State.WITHDRAWN:
        _as_draft(delivery)


def _promote(delivery: Delivery) -> None:
    if not versions.go_live(delivery.candidate, delivery.base.number):
        raise Conflict(f"v{delivery.base.number} is no longer live: the candidate cannot replace it", kind="live")


def _bring_back(delivery: Delivery, wanted: TransitionRequest) -> None:
    """Publish the old document as a new version."""
    base = delivery.base
    try:
        with transaction.atomic():
            version = versions.add_version(
                delivery.policy,
                base.document,
                wanted.actor,
                wanted.why or f"Delivery of v{delivery.candidate.number} rolled back",
                based_on=delivery.candidate.number,
                rollback_of=base.number,
            )
    except IntegrityError:
        raise moved(delivery) from None
    if not versions.go_live(version, delivery.candidate.number):
        raise Conflict(f"v{delivery.candidate.number} is no longer live: nothing to roll back", kind="live")
    subject = f"policy {delivery.policy.name} {version.label}"
    before, after = delivery.candidate.upgraded, version.upgraded
    audit.record(wanted.actor, "policy.rollback", subject, wanted.why, before, after)


def _as_draft(delivery: Delivery) -> None:
    """Restore the candidate as a draft, unless another draft has been opened; its version keeps the document anyway."""
    Draft.objects.get_or_create(
        policy=delivery.policy,
        defaults={
            "document": documents.dump(documents.parse(delivery.candidate.upgraded)),
            "based_on": delivery.base.number,
            "opened_by": delivery.proposed_by,
            "updated_by": delivery.proposed_by,
            "savers": delivery.drafters,
        },
    )


def _record(delivery: Delivery, before: Position, after: Position, wanted: TransitionRequest) -> None:
    if wanted.what in QUIET and before.state == after.state:
        return
    facts: dict[str, object] = {"plan": delivery.plan, "figures": [each.as_dict() for each in wanted.findings]}
    facts["holds"] = msgspec.to_builtins(after.holds)
    if wanted.pairs:
        facts["pairs"] = wanted.pairs
    was, now = ({name: getattr(at, name) for name in ("state", "step", "share")} for at in (before, after))
    audit.record(wanted.actor, f"delivery.{wanted.what}", delivery.subject, wanted.why, was, {**now, **facts})


def _notify(delivery: Delivery, before: Position, after: Position, wanted: TransitionRequest) -> None:
    if (before.state, before.step) == (after.state, after.step):
        return
    tell(delivery, after.state, after.step, wanted.why, wanted.actor)
    if wanted.emergency:
        tell(delivery, "emergency", after.step, wanted.why, wanted.actor)


def tell(delivery: Delivery, event: str, step: int, why: str, actor: Actor) -> None:
    """Queue a notice, in the caller's transaction."""
    facts: JsonObject = {
        "delivery": delivery.pk,
        "policy": delivery.policy.name,
        "version": delivery.candidate.number,
        "base": delivery.base.number,
        "step": step + 1,
        "steps": len(delivery.plan["steps"]),
        "by": actor.name,
        "pools": [pool.name for pool in pools_of(delivery.policy)],
    }
    text = f"{delivery.subject}: {event.replace('_', ' ')} by {actor.name}{why and f': {why}'}"
    notify(f"delivery.{event}", delivery.subject, text, facts, actor.name, _mark(delivery, event, step, why))


STATE_WORDS = {"arming": "waiting for routers", "baking": "watching", "holding": "on hold"}


def _mark(delivery: Delivery, event: str, step: int, why: str) -> str:
    """Return one line for the wall: the first reason, or the step if its reason is in the delivery's own line."""
    name = f"{delivery.policy.name} v{delivery.candidate.number}"
    if event == State.STEP:
        return f"{name}: {_step_words(delivery.plan['steps'][step])}"
    first = why.partition(";")[0]
    return f"{name}: {STATE_WORDS.get(event, event.replace('_', ' '))}{first and f': {first}'}"


def _step_words(step: Mapping[str, Any]) -> str:
    """Format a step: canary 5 %."""
    return f"canary {percent(step['share'], '.3g')}" if step["mode"] == "canary" else str(step["mode"])


def moved(delivery: Delivery) -> Conflict:
    now = Delivery.objects.get(pk=delivery.pk)
    return Conflict(
        f"the delivery was changed meanwhile: {now.what or 'propose'} by {now.by}, it is {now.state}",
        kind="stale",
        current=now.etag,
    )
