"""A pool's requests arrive, wait, are woken late, time out, leave, fail and end in any order."""

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.policy.schema import document
from router.policy.types import CLASSES, Decision
from router.pool.admission import Admission, Refusal, Wait
from router.pool.queue.admission_queue import MAX_WAIT_S, AdmissionQueue
from router.pool.queue.band_queue import BandQueue
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules

pytestmark = pytest.mark.timeout(LONGEST)
TENANTS = ("a", "b")
BANDS = (0, 0, 5, -10)
STEPS = 40
LONGEST_S = 60.0  # longest wait that any of these policies allows
LOOK_S = 1.0  # interval at which a router checks its queue again


def policy_of(limit, wait_s, shares):
    values = {"max_queue": dict.fromkeys(CLASSES, limit), "share": dict(zip(CLASSES, shares, strict=True))}
    values = {f"admission.{key}_{name}": value for key, each in values.items() for name, value in each.items()}
    waits = {f"admission.max_wait_{name}_s": wait_s for name in CLASSES}
    lifted = {"admission.band_max_wait_s": 20.0}
    return document.parse(document.apply_overrides(document.default(), values | waits | lifted))


POLICIES = (policy_of(20, LONGEST_S, (4, 2, 1)), policy_of(2, 5.0, (1, 1, 1)))


class Request:
    def __init__(self, queue, kind, tokens, now, deadline):
        self.kind, self.tokens = kind, tokens  # class, tenant, band
        self.admission = Admission(queue, now, kind[1], deadline, band=kind[2])
        self.joined = None  # its position in the queue; None: it is not queued
        self.waited_s = 0.0
        self.since = now
        self.is_woken = False

    @property
    def is_queued(self):
        return self.admission.state == "queued"

    @property
    def band(self):
        """The request's current band."""
        entry = self.admission._entry
        return self.kind[2] if entry is None else entry.band

    @property
    def is_displaced(self):
        return self.admission._entry is not None and self.admission._entry.displaced


class AdmissionMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.queue, self.policy = AdmissionQueue(), POLICIES[0]
        self.now, self.slots, self.free = 0.0, 1, 1
        self.is_able = True
        self.places = count()
        self.waiting, self.running = [], []  # each request is in one of the two, or has ended

    # The router's side

    def decide(self, request):
        """Try to place the request until it is sent, queued or refused."""
        name, instance = request.kind[0], "demo-0" if self.free else ""
        decision = Decision(instance, name, "colocated", "", "", (), 0, request.tokens, ())
        if request.admission.admits(decision, self.now):
            self.send(request)
            return
        found = request.admission.put_off(decision, self.policy, self.now, lambda: self.is_able)
        if isinstance(found, Wait):
            self.wait(request, found)
        else:
            self.refused(request, found)

    def wait(self, request, wait):
        limit = self.policy[f"admission.max_wait_{request.kind[0]}_s"]
        assert wait.until - self.now <= limit - request.waited_s + 1e-6
        request.joined = next(self.places) if request.joined is None else request.joined
        request.is_woken, request.since = False, self.now
        self.waiting.append(request)
        request.admission.when_woken(lambda: self.woken(request))

    def woken(self, request):
        assert request in self.waiting, "it is over, or runs"
        assert not request.is_woken, "it was woken twice"
        request.is_woken = True
        if request.is_displaced:
            return
        asked = request.admission._entry.offer.asked
        for other in (each for each in self.waiting if each.is_queued and each.admission._entry not in asked):
            assert other.band <= request.band, "it was overtaken by one of a lower band"
            before = other.kind == request.kind and other.joined < request.joined and other.band == request.band
            assert not before, "it was overtaken by one of its own"

    def send(self, request):
        assert self.free > 0
        same = [each for each in self.waiting if each.band >= request.band and not each.is_displaced]
        assert request.joined is not None or not same, "it overtook those that wait"
        self.free -= 1
        self.running.append(request)
        request.began = self.now
        self.queue.began(self.now)

    def refused(self, request, refusal):
        assert refusal.retry_after_s is None or 1 <= refusal.retry_after_s <= MAX_WAIT_S
        assert request.admission.state == "refused" or refusal.code in ("queue_timeout", "deadline_exceeded")

    def end_waiting(self, request):
        self.waiting.remove(request)
        request.waited_s += self.now - request.since

    def resume(self, request):
        """Resume a request that was woken or has timed out."""
        self.end_waiting(request)
        is_woken = request.is_woken
        refusal = request.admission.resume(self.now)
        assert request.admission.queued_s == pytest.approx(request.waited_s)
        assert is_woken == (refusal is None or refusal.code == "displaced")
        if refusal is None:
            self.decide(request)
        else:
            self.refused(request, refusal)

    def give_back(self, request):
        self.running.remove(request)
        self.free += 1
        self.queue.ended(self.now, request.began)
        self.somebody_is_asked()

    def somebody_is_asked(self):
        """Announce capacity for one more request."""
        waiting = [each for each in self.waiting if not each.is_displaced]
        assert not waiting or any(each.is_woken for each in waiting), "capacity was offered to nobody"

    # The schedule

    @rule(
        name=st.sampled_from(CLASSES),
        tenant=st.sampled_from(TENANTS),
        tokens=st.integers(1, 50_000),
        within_s=st.sampled_from([None, None, 2.0, 20.0]),
        band=st.sampled_from(BANDS),
    )
    def comes(self, name, tenant, tokens, within_s, band):
        deadline = None if within_s is None else self.now + within_s
        request = Request(self.queue, (name, tenant, band), tokens, self.now, deadline)
        assert request.admission.begin(self.now) is None
        self.decide(request)

    @precondition(lambda self: any(each.is_woken for each in self.waiting))
    @rule(which=st.integers(0, 9))
    def goes_on(self, which):
        found = [each for each in self.waiting if each.is_woken]
        self.resume(found[which % len(found)])

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 9))
    def leaves(self, which):
        """Let a waiting request's client leave, perhaps just as the request is woken."""
        request = self.waiting[which % len(self.waiting)]
        offer = request.admission._entry.offer
        self.end_waiting(request)
        request.admission.abandon(self.now)
        asked = [] if offer is None else offer.asked
        if offer is not None and any(each.is_queued and each.admission._entry not in asked for each in self.waiting):
            self.somebody_is_asked()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def ends(self, which):
        request = self.running[which % len(self.running)]
        self.give_back(request)
        request.admission.settle(request.tokens, which * 100)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def fails(self, which):
        """Fail a running request's instance, so that the request is sent again."""
        request = self.running[which % len(self.running)]
        self.give_back(request)
        request.joined = None
        refusal: Refusal | None = request.admission.begin(self.now)
        if refusal is None:
            self.decide(request)

    @rule(seconds=st.sampled_from([0.3, LOOK_S, 5.0, 30.0]))
    def time_passes(self, seconds):
        self.now += seconds
        for request in [each for each in self.waiting if each.admission.wait.until <= self.now]:
            self.resume(request)
        if seconds >= LOOK_S:
            self.queue.look_again()

    @rule(change=st.sampled_from([1, 1, -1]))
    def instances_change(self, change):
        """Change capacity without an announcement: a breaker closes, or other routers' requests take or release it."""
        if change > 0 or self.free:
            self.slots += change
            self.free += change

    @rule(which=st.integers(0, 1), is_able=st.sampled_from([True, True, False]))
    def policy_or_fleet_changes(self, which, is_able):
        self.policy, self.is_able = POLICIES[which], is_able
        self.queue.follow(self.policy)
        self.queue.wake_all()

    # Promises

    @invariant()
    def the_queue_counts_those_that_wait(self):
        kinds = [each.kind[0] for each in self.waiting if not each.is_displaced]
        assert len(self.queue) == len(kinds)
        assert {name: self.queue.waiting[name] for name in CLASSES} == {name: kinds.count(name) for name in CLASSES}

    @invariant()
    def capacity_is_neither_lost_nor_lent_twice(self):
        assert self.free + len(self.running) == self.slots
        assert self.queue.drain._running == len(self.running)

    @invariant()
    def an_expected_wait_is_a_time(self):
        for name in CLASSES:
            for tenant in TENANTS:
                wait_s = self.queue.expected_wait_s(self.queue.entry(name, tenant), self.now)
                assert wait_s is None or 0.0 <= wait_s <= MAX_WAIT_S

    @invariant()
    def nobody_waits_longer_than_a_policy_lets_it(self):
        assert all(each.admission.wait.until <= self.now + LONGEST_S for each in self.waiting)

    def teardown(self):
        """Check that, once nothing runs, all requests have been served and nothing is left."""
        self.is_able = True
        self.instances_change(1)
        for _ in range(3 * len(self.waiting) + len(self.running) + 3):
            self.queue.look_again()
            for request in [each for each in self.waiting if each.is_woken]:
                self.resume(request)
            for request in list(self.running):
                self.give_back(request)
        assert not self.waiting, "a request starved"
        assert not self.queue.waiting_by_band()
        assert (len(self.queue), sum(self.queue.waiting.values()), self.queue._woken) == (0, 0, {})
        for each in self.queue._highest_first:
            for one in each.classes.values():
                assert (one._tenants, one._heap, one.arrived, len(one)) == ({}, [], {}, 0)


def test_no_schedule_loses_capacity_or_a_waiting_request():
    try_schedules(AdmissionMachine, 40, steps=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 3))
def test_none_of_many_schedules_loses_capacity_or_a_waiting_request(number):
    try_schedules(AdmissionMachine, 100 * TIMES, number, STEPS)


def offers_lapse(queue, entry):
    """A request that leaves does not pass its offer on."""
    entry.offer = None


def stays_in_its_class(queue, entry):
    """A request that gives up keeps its position in the queue."""
    queue.resume(entry)


def loses_its_place(queue, entry, again):
    """A request woken in vain goes to the end of the queue."""
    entry.order += 1_000_000 if again else 0
    REAL_PUT(queue, entry, again)


def knows_no_bands(queue, asked):
    """The request that arrived first is always next."""
    found = (one.first(asked) for one in queue._highest_first if one.total)
    return min((entry for entry in found if entry is not None), key=lambda entry: entry.order, default=None)


REAL_PUT = BandQueue.put


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "method", "mutation"),
    [
        (AdmissionQueue, "leave", offers_lapse),
        (AdmissionQueue, "give_up", stays_in_its_class),
        (AdmissionQueue, "_next", knows_no_bands),
        (BandQueue, "put", loses_its_place),
    ],
)
def test_a_schedule_finds_a_queue_that(of, method, mutation, monkeypatch):
    monkeypatch.setattr(of, method, mutation)
    assert schedules_until_broken(AdmissionMachine, 400, STEPS)
