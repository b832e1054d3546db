"""Publications, deliveries, the judge, periodic steps for policies, fleet and keys, and two routers, interleaved."""

import time
from collections.abc import Callable
from datetime import timedelta

import redis
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import F
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from controlplane.people.audit.services import Actor as Person
from controlplane.tests.schedules.scheduler import FAR, Actor, Order
from controlplane.tests.schedules.stage import POOL, Stage, World
from controlplane.traffic.deliveries import selectors as deliveries
from controlplane.traffic.deliveries import services as delivering
from controlplane.traffic.deliveries.judge import step as judge
from controlplane.traffic.deliveries.models import Delivery, Freeze
from controlplane.traffic.deliveries.timing.freezes import FreezeRule
from controlplane.traffic.deliveries.timing.freezing import add_freeze, remove_freeze
from controlplane.traffic.keys import publishing as keys
from controlplane.traffic.keys import services as key_services
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.policies import selectors, services
from controlplane.traffic.policies.errors import PolicyError
from controlplane.traffic.policies.models import Direct, Draft, Policy
from fleet.control.publish import publish_fleet, publish_step
from fleet.models import Instance
from router.contract.redis import redis_keys
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents

ADA = Person("user", "ada", is_admin=True)
OTTO = Person("user", "otto")
VERA = Person("user", "vera")
WHY = "less prefill on warm instances"
PLAN = {
    "steps": [
        {"mode": "shadow", "sample": 1.0, "for_s": 60},
        {"mode": "canary", "share": 0.05, "for_s": 60},
        {"mode": "full", "bake_s": 600},
    ]
}
STEERING = (delivering.pause, delivering.resume, delivering.advance, delivering.abort)
EXPECTED = (PolicyError, InvalidInput, PermissionDenied, redis.RedisError, DatabaseError)
HEARD = ("", redis_keys.policy_key(POOL), redis_keys.policy_key(POOL), redis_keys.fleet_key(POOL), redis_keys.API_KEYS)
DECIDING = ("publisher", "publisher", "rollback", "proposer", "approver", "steering", "judge")
DIRECT = {1: Direct.NEVER, 4: Direct.ADMIN}  # by the choice of new rules
HAPPENING = ("new_rules", "loses_redis", "new_rules", "saves_redis", "restarts")
MOST_ACTORS = 5
# Time between two observations. No sum of them is within seconds of a time in the plan or the code, so the duration of
# the schedule itself does not matter.
PASSING_S = (0, 22, 44, 700)
DISTURBING = tuple(order for order in Order if order is not Order.GO)


class PublicationMachine(RuleBasedStateMachine):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.world = World(stage)
        self.scheduler = self.world.scheduler
        self.tokens = 9_000
        self.keys = 0
        self.proposed = False
        self.judged_at = time.time()

    def begin(self, name: str, work: Callable[[], object], writes: int) -> Actor:
        """Run the work to its end, or stop it before its first or second write."""
        actor = self.scheduler.begin(name, work, EXPECTED)
        for _ in range(writes):
            self.scheduler.go(actor, "to a write")
        if not writes:
            self.scheduler.go(actor, "to its end")
        return actor

    def by_hand(self, work: Callable[[], object]) -> object:
        """Do the work at once, as a person whose steps nothing interrupts."""
        try:
            return work()
        except EXPECTED:
            return None
        finally:
            self.world.look()

    def edit(self) -> None:
        """Leave a draft based on the live version."""
        self.tokens += 1
        live = selectors.live_version(self.world.policy)
        changed = documents.apply_overrides(live.upgraded, {"classes.heavy_new_tokens": self.tokens})
        row = {"document": changed, "based_on": live.number, "opened_by": "otto", "updated_by": "otto"}
        Draft.objects.update_or_create(policy=self.world.policy, defaults=row)

    @initialize(choice=st.sampled_from((0, 2, 0, 1, 0, 3)))
    def begins_under(self, choice: int) -> None:
        """These rules apply at first; they may be changed later."""
        if choice:
            self._new_rules(choice)

    # The actor that begins. `writes` is the number of writing seams up to which it runs at once; 0: it runs to its end.

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(who=st.sampled_from(DECIDING), choice=st.integers(0, 9), writes=st.sampled_from((2, 0, 1, 3)))
    def decides(self, who: str, choice: int, writes: int) -> None:
        """Change what decides requests, as a person or a process."""
        getattr(self, f"_{who}")(choice, writes)

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(what=st.sampled_from(["policies", "fleet", "keys"]), change=st.integers(0, 2), writes=st.integers(0, 2))
    def publishes(self, what: str, change: int, writes: int) -> None:
        """Take a periodic step, or one that follows a change."""
        getattr(self, f"_publish_{what}")(change, writes)

    @precondition(lambda self: len(self.scheduler.actors) < MOST_ACTORS)
    @rule(number=st.integers(0, 1), key=st.sampled_from(HEARD), seams=st.integers(0, 3))
    def reads(self, number: int, key: str, seams: int) -> None:
        """Let a router poll, or receive the message of a change: at once, late, or twice."""
        router = self.world.routers[number]
        if any(actor.name == router.name for actor in self.scheduler.actors):
            return
        if key:
            self.begin(router.name, router.does(lambda source: source.live.changed(key)), seams)
        else:
            self.begin(router.name, router.does(lambda source: source.live.poll()), seams)

    def _publisher(self, choice: int, writes: int) -> None:
        self.by_hand(self.edit)
        direct = bool(choice % 2)
        self.begin("publication", lambda: services.publish(self.policy(), OTTO, WHY, abort_open=direct), writes)

    def _rollback(self, choice: int, writes: int) -> None:
        to = max(1, self.policy().live - 1 - choice % 2)
        self.begin("rollback", lambda: services.rollback(self.policy(), to, OTTO, WHY), writes)

    def _proposer(self, choice: int, writes: int) -> None:
        self.by_hand(self.edit)
        made = self.by_hand(lambda: delivering.propose(self.policy(), PLAN, OTTO, WHY))
        if isinstance(made, Delivery):
            self.proposed = True
            self.begin("start", lambda: delivering.start(made, OTTO, WHY), writes)

    def _approver(self, choice: int, writes: int) -> None:
        """Approve as another person or as the proposer, then start, which may be too early."""
        held = deliveries.open_delivery(self.world.policy) if self.proposed else None
        if held is not None:
            self.by_hand(lambda: delivering.approve(held, OTTO if choice % 2 else VERA))
            self.begin("start", lambda: delivering.start(deliveries.delivery(held.pk), OTTO, WHY), writes)

    def _steering(self, choice: int, writes: int) -> None:
        held = deliveries.open_delivery(self.world.policy) if self.proposed else None
        if held is not None:
            action = STEERING[choice % len(STEERING)]
            self.begin(action.__name__, lambda: action(held, ADA, WHY), writes)

    def _judge(self, choice: int, writes: int) -> None:
        if self.proposed:
            self.judged_at += PASSING_S[choice % len(PASSING_S)]
            now = self.judged_at
            self.begin("judge", lambda: judge.step(now), writes)

    def _publish_policies(self, change: int, writes: int) -> None:
        self.begin("republisher", services.republish_missing, writes)

    def _publish_fleet(self, change: int, writes: int) -> None:
        self.begin("fleet", _restart_instance if change else publish_step, writes)

    def _publish_keys(self, change: int, writes: int) -> None:
        row = ApiKey.objects.filter(revoked_at=None).first() if change == 1 else None
        if change == 0:
            self.begin("keys", keys.republish, writes)
        elif row is None:
            self.keys += 1
            name, terms = f"key {self.keys}", key_services.KeyTerms()
            self.begin("new key", lambda: key_services.create_key(name, terms, ADA), writes)
        else:
            self.begin("revocation", lambda: key_services.revoke_key(row, ADA), writes)

    # The schedule

    @precondition(lambda self: self.scheduler.actors)
    @rule(which=st.integers(0, MOST_ACTORS - 1), far=st.sampled_from(FAR))
    def goes_on(self, which: int, far: str) -> None:
        self.scheduler.go(self.scheduler.actors[which % len(self.scheduler.actors)], far)

    @precondition(lambda self: self.scheduler.actors)
    @rule(which=st.integers(0, MOST_ACTORS - 1), order=st.sampled_from(DISTURBING))
    def is_disturbed(self, which: int, order: Order) -> None:
        """Interrupt an actor at its next write."""
        actor = self.scheduler.actors[which % len(self.scheduler.actors)]
        self.scheduler.go(actor, "to a write")
        if not actor.ended:
            self.scheduler.go_on(actor, order)

    @rule(what=st.sampled_from(HAPPENING), choice=st.integers(0, 5))
    def happens(self, what: str, choice: int) -> None:
        getattr(self, f"_{what}")(choice)

    def _restarts(self, choice: int) -> None:
        router = self.world.routers[choice % 2]
        for actor in [each for each in self.scheduler.actors if each.name == router.name]:
            self.scheduler.go_on(actor, Order.DIE)
        self.world.restart(router)

    def _loses_redis(self, choice: int) -> None:
        self.world.lose_redis()

    def _saves_redis(self, choice: int) -> None:
        self.world.save_redis()

    def _new_rules(self, choice: int) -> None:
        rules = {"direct": DIRECT.get(choice, Direct.ALLOWED), "approvals_needed": int(choice == 2)}
        self.by_hand(lambda: delivering.set_rules(self.policy(), ADA, WHY, **rules))
        self.by_hand(self._freeze if choice == 3 else self._thaw)

    def _freeze(self) -> None:
        today = timezone.now()
        start, end = (f"{today + timedelta(days=days):%Y-%m-%dT00:00}" for days in (-1, 2))
        add_freeze(FreezeRule("audit", (), start, end, "UTC", reason=WHY), ADA)

    def _thaw(self) -> None:
        for row in Freeze.objects.filter(removed_at=None):
            remove_freeze(row, ADA)

    def policy(self) -> Policy:
        return selectors.policy(self.world.policy.name)

    # In the end

    def teardown(self) -> None:
        try:
            for actor in list(self.scheduler.actors):
                self.scheduler.go(actor, "to its end")
            self.settle()
        finally:
            self.scheduler.kill_all()

    def settle(self) -> None:
        """Run one round of the periodic steps without disturbance."""
        for step in (services.republish_missing, keys.republish, publish_step):
            step()
        for router in self.world.routers:
            polling = self.begin(router.name, router.does(lambda source: source.live.poll()), 0)
            if polling.error is not None:
                raise polling.error
        self.world.at_rest()


def _restart_instance() -> None:
    Instance.objects.update(epoch=F("epoch") + 1)
    publish_fleet(POOL)
