"""The judge's step, every 5 s: judges each open delivery, applies its transition, and renews its routers' split. Its
memory is in the database, so that any control worker can perform the next look.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import redis
import structlog

from controlplane.traffic.deliveries import judging, prometheus, selectors, services
from controlplane.traffic.deliveries.judge import evidence, look, memory
from controlplane.traffic.deliveries.judge.findings import GuardFinding, LookFacts
from controlplane.traffic.deliveries.judge.look import Proposal, Situation
from controlplane.traffic.deliveries.judge.memory import Memory
from controlplane.traffic.deliveries.judge.pools import LookInputs, findings_of
from controlplane.traffic.deliveries.judge.prometheus import QueryResults
from controlplane.traffic.deliveries.judge.sums import Traffic
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.moving import clock_s
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.types import Plan, Shadow, Switchback
from controlplane.traffic.deliveries.prometheus import Queries
from controlplane.traffic.deliveries.states import SPLIT, Hold, State, Trigger
from fleet.redis import connect
from router.contract.redis import redis_keys
from router.contract.redis.staleness import WORKER_DOWN_S

log = structlog.get_logger(__name__)
AWAY_S = float(redis_keys.WATCH_TTL_S)  # after this long without a look, routers serve the live version
LOOKS_KEPT = timedelta(days=30)
EVERY_LOOK = timedelta(hours=1)  # age from which looks without changes are thinned out
ONE_OF = 12  # one of twelve looks is kept, which is one per minute
PRUNED_EVERY_S = 3600
SPLITTING = frozenset({State.STEP, State.HOLDING, State.WAITING})  # Routers split, or keep the split ready.


@dataclass(frozen=True, slots=True)
class _Begun:
    """A delivery whose look is waiting for answers."""

    delivery: Delivery
    plan: Plan
    traffic: Traffic
    queries: Queries


def step(now: float | None = None) -> None:
    """Judge each open delivery. One that cannot be judged does not stop the others: its watch expires, and the live
    version serves. Queries to Prometheus delay only the deliveries that use them."""
    now = time.time() if now is None else now
    waiting = []
    for delivery in selectors.open_deliveries():
        with _judged_alone(delivery):
            begun = _begin(delivery, now)
            if isinstance(begun, _Begun) and not begun.queries:
                _finish(begun, now, {})
            elif isinstance(begun, _Begun):
                waiting.append(begun)
    for begun, answers in zip(waiting, prometheus.ask(*(each.queries for each in waiting)), strict=True):
        with _judged_alone(begun.delivery):
            _finish(begun, now, answers)
    prune(now)


@contextlib.contextmanager
def _judged_alone(delivery: Delivery) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("delivery.not_judged", delivery=delivery.pk)


def judge(delivery: Delivery, now: float) -> Delivery:
    """Apply transitions that are due by the clock or reported by routers, judge, and renew the watch."""
    begun = _begin(delivery, now)
    return _finish(begun, now, *prometheus.ask(begun.queries)) if isinstance(begun, _Begun) else begun


def _begin(delivery: Delivery, now: float) -> Delivery | _Begun:
    """Perform everything that precedes the look. Return the delivery, or None if there is no look."""
    at, plan = datetime.fromtimestamp(now, UTC), stored_plan.read(delivery.plan)
    if delivery.state == State.ARMING:
        delivery = _learn(delivery, plan)
    looked_at = unwatched_since(delivery, at)
    if looked_at is not None:
        return judging.away(delivery, looked_at, at)
    delivery = services.tick(delivery, at)
    try:
        stop = evidence.stop_of(delivery.pk, plan.pools) if delivery.state in SPLIT else None
        blocks = isinstance(plan.steps[delivery.step], Switchback)
        traffic = evidence.read(delivery.pk, None if blocks else delivery.generation)
    except redis.RedisError as error:
        return _blind(delivery, error, at)
    if stop is not None:
        return services.stopped(delivery, stop, at)
    watched = delivery.state in judging.WATCHED
    return _Begun(delivery, plan, traffic, _queries(delivery, plan, at) if watched else {})


def _finish(begun: _Begun, now: float, answers: QueryResults) -> Delivery:
    delivery, plan = begun.delivery, begun.plan
    if delivery.state in judging.WATCHED:
        found = proposal(delivery, plan, begun.traffic, now, answers)
        delivery = services.judge_step(delivery, found, datetime.fromtimestamp(now, UTC))
    if delivery.state in SPLITTING:
        evidence.renew_watch(delivery.pk, delivery.generation, plan.pools)
    return delivery


def unwatched_since(delivery: Delivery, at: datetime) -> datetime | None:
    """Return the time of the last look, if routers have given up the split since then."""
    last = _looked_at(delivery)
    given_up = delivery.state in (State.STEP, State.HOLDING) and at - last > timedelta(seconds=AWAY_S)
    return last if given_up else None


def unjudged_s(delivery: Delivery, at: datetime) -> float | None:
    """Return how long the delivery has gone without a judgement, if that counts as a silence of the judge; None if no
    look is due."""
    if delivery.state not in (*judging.WATCHED, State.ARMING):
        return None
    due_s = judging.ARM_S if delivery.state == State.ARMING else 0
    silent_s = (at - _looked_at(delivery)).total_seconds()
    return silent_s if silent_s > due_s + WORKER_DOWN_S else None


def _looked_at(delivery: Delivery) -> datetime:
    return max(delivery.looks.values_list("at", flat=True).first() or delivery.state_at, delivery.state_at)


def _learn(delivery: Delivery, plan: Plan) -> Delivery:
    """At each arming, learn the limits of slow requests, which are published to routers with the next step."""
    limits = evidence.learned_limits(plan.pools, delivery.base.number)
    if limits:
        Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(slow=limits)
        delivery.refresh_from_db()
    return delivery


def _blind(delivery: Delivery, error: redis.RedisError, at: datetime) -> Delivery:
    """Hold without judging, because routers whose watch expires return to the live version by themselves."""
    if delivery.state not in (State.STEP, State.HOLDING):
        return delivery
    text = f"Redis does not answer: {error}"
    finding = GuardFinding(metric="tallies", verdict="error", text=text)
    held = Proposal(Trigger.HOLD, text, (Hold("tallies", text),), (finding,))
    return services.judge_step(delivery, held, at)


def _queries(delivery: Delivery, plan: Plan, at: datetime) -> Queries:
    """Return the guards' queries to Prometheus; none for a shadow, which sends the candidate no requests."""
    if isinstance(plan.steps[delivery.step], Shadow):
        return {}
    ran_s = clock_s(delivery, at) if delivery.state != State.BAKING else (at - delivery.state_at).total_seconds()
    return prometheus.queries(plan, delivery.policy.name, delivery.candidate.number, ran_s)


def proposal(
    delivery: Delivery, plan: Plan, traffic: Traffic, now: float, answers: QueryResults | None = None
) -> Proposal:
    began = time.perf_counter()
    kept = memory.load(delivery.memory)
    at = Situation(
        plan=plan,
        state=State(delivery.state),
        step=delivery.step,
        clock_s=clock_s(delivery, datetime.fromtimestamp(now, UTC)),
        block=delivery.block,
        blocks=len(delivery.blocks),
    )
    inputs = LookInputs(
        delivery.generation, delivery.share, tuple(delivery.blocks), _previewed(delivery), answers or {}
    )
    found = tuple(each for pool in plan.pools for each in findings_of(at, inputs, pool, traffic, kept, now))
    _notice_data(found, kept, now)
    wanted = look.propose(at, found, kept, now)
    ms = round((time.perf_counter() - began) * 1000, 1)
    facts = LookFacts(len(traffic.routers), len(traffic.tallies), len(found), ms)
    return replace(wanted, findings=found, facts=facts, memory=kept)


def _notice_data(found: tuple[GuardFinding, ...], kept: Memory, now: float) -> None:
    if not look.without_data(found):
        kept.without_data = None
    elif kept.without_data is None:
        kept.without_data = now


def _previewed(delivery: Delivery) -> Callable[[str], tuple[float, float] | None]:
    """Return the share of changed decisions by pool, from the newest preview on the pool's recorded traffic."""

    def of(pool: str) -> tuple[float, float] | None:
        done = delivery.policy.previews.filter(pool=pool, draft_sha256=delivery.candidate.sha256, status="done")
        for preview in done.order_by("-pk")[:5]:
            if preview.trace.get("source") == "recorded" and preview.result:
                changed = preview.result["changed"]
                return float(changed["low"]), float(changed["high"])
        return None

    return of


def prune(now: float) -> None:
    """Delete old looks once an hour, in whichever worker is first."""
    if not connect().set(redis_keys.lock_key("deliveries.prune"), "1", nx=True, ex=PRUNED_EVERY_S):
        return
    at = datetime.fromtimestamp(now, UTC)
    Look.objects.filter(at__lt=at - LOOKS_KEPT).delete()
    quiet = Look.objects.filter(at__lt=at - EVERY_LOOK, proposal=Trigger.STAY).values_list("pk", flat=True)
    thinned = [pk for pk in quiet if pk % ONE_OF]
    for first in range(0, len(thinned), 500):
        Look.objects.filter(pk__in=thinned[first : first + 500]).delete()
