"""Forecasts how long a queued or refused request has to wait, from the rate at which slots become free."""

import heapq
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.pool.queue import class_queue
from router.pool.queue.admission_queue import MAX_WAIT_S, AdmissionQueue
from router.pool.queue.drain_rate import LONGER, DrainRate

CLASSES = ("warm", "medium", "heavy")
EVENTS = st.lists(st.tuples(st.sampled_from(["began", "ended", "waits"]), st.floats(0.0, 5000.0)), max_size=60)


def played(events, queue):
    """Play these events and return the time after them; requests end in the order in which they began."""
    now, running = 0.0, []
    for what, pause in events:
        now += pause
        if what == "began":
            queue.began(now)
            running.append(now)
        elif what == "ended" and running:
            queue.ended(now, running.pop(0))
    return now


def waiting(queue, request_class="warm", tenant="", cost=1.0):
    entry = queue.entry(request_class, tenant, cost)
    queue.join(entry, 10_000, lambda: None)
    return entry


@settings(deadline=None)
@given(EVENTS, st.lists(st.tuples(st.sampled_from(CLASSES), st.sampled_from("ab"), st.floats(1.0, 1e6)), max_size=20))
def test_an_expected_wait_is_finite_and_grows_with_the_queue(events, joining):
    queue = AdmissionQueue()
    now = played(events, queue)
    asking = [queue.entry(name, tenant) for name in CLASSES for tenant in "ab"]
    before = [queue.expected_wait_s(entry, now) for entry in asking]
    for name, tenant, cost in joining:
        waiting(queue, name, tenant, cost)
        after = [queue.expected_wait_s(entry, now) for entry in asking]
        for entry, old, new in zip(asking, before, after, strict=True):
            assert (old is None) == (new is None)
            assert new is None or (0.0 <= new <= MAX_WAIT_S and math.isfinite(new))
            if new is not None and (entry.request_class, entry.tenant) == (name, tenant):
                assert new >= old
        before = after


@settings(deadline=None)
@given(st.integers(1, 64), st.floats(0.01, 60.0), st.floats(0.0, 1.0))
def test_a_steady_drain_is_measured_within_a_factor_of_two(slots, held_s, jitter):
    drain, numbers = DrainRate(), random.Random(1)
    ends = []
    for number in range(slots):
        drain.began(0.0)
        heapq.heappush(ends, (held_s * (number + 1) / slots, 0.0))
    for _ in range(max(100, 5 * slots)):
        now, began = heapq.heappop(ends)
        drain.ended(now, began)
        drain.began(now)
        heapq.heappush(ends, (now + held_s * numbers.uniform(1 - jitter, 1 + jitter), now))
    assert held_s / slots / 2 <= drain.turn_s(now) <= held_s / slots * 2


def test_nothing_is_predicted_before_a_request_was_in_flight():
    assert DrainRate().turn_s(5.0) is None


def test_before_any_request_has_ended_those_in_flight_count_as_half_done():
    drain = DrainRate()
    for _ in range(4):
        drain.began(10.0)
    assert drain.turn_s(11.0) == pytest.approx(2.0 / 4)


def test_the_wait_grows_with_the_silence_up_to_the_longest_reported_wait():
    queue = AdmissionQueue()
    played([("began", 0.0)] * 4 + [("ended", 0.5), ("began", 0.0)] * 40, queue)
    waiting(queue)
    told = [queue.expected_wait_s(queue.entry("warm"), 20.0 + silence) for silence in (0, 5, 20, 60, 1e4, 1e9)]
    assert told == sorted(told)
    assert told[0] == pytest.approx(2 * 0.5, rel=0.2)
    assert told[-1] == MAX_WAIT_S


def test_an_idle_hour_does_not_count_as_a_slow_drain():
    drain = DrainRate()
    played([("began", 0.0), ("ended", 1.0)] * 20, drain)
    drain.began(3600.0)
    assert drain.turn_s(3600.0) == pytest.approx(1.0, rel=0.1)


def test_twice_the_instances_halve_the_wait_at_once():
    drain = DrainRate()
    now = played([("began", 0.0)] * 8 + [("ended", 0.25), ("began", 0.0)] * 80, drain)
    before = drain.turn_s(now)
    for _ in range(8):
        drain.began(now)
    assert drain.turn_s(now) == pytest.approx(before / 2, rel=0.1)


def test_a_request_waits_only_for_requests_that_its_share_places_ahead():
    queue = AdmissionQueue()
    queue.shares = {"warm": 4.0, "medium": 2.0, "heavy": 1.0}
    played([("began", 0.0), ("ended", 1.0), ("began", 0.0)], queue)
    for _ in range(40):
        waiting(queue, "warm")
    told = {name: queue.expected_wait_s(queue.entry(name), 1.0) for name in CLASSES}
    assert told == pytest.approx({"warm": 41.0, "medium": 1.0, "heavy": 1.0})
    for _ in range(4):
        waiting(queue, "heavy")
    assert queue.expected_wait_s(queue.entry("heavy"), 1.0) == pytest.approx(4 + 16 + 1)


def test_a_tenants_first_request_does_not_wait_for_another_tenants_thousand():
    queue = AdmissionQueue()
    played([("began", 0.0), ("ended", 0.1), ("began", 0.0)], queue)
    for _ in range(1000):
        waiting(queue, tenant="many")
    assert queue.expected_wait_s(queue.entry("warm", "one"), 0.1) == pytest.approx(0.1)
    assert queue.expected_wait_s(queue.entry("warm", "many"), 0.1) == pytest.approx(100.1)


def test_a_sample_of_thousands_of_waiting_tenants_predicts_the_wait(monkeypatch):
    queue, draw = AdmissionQueue(), random.Random(1)
    played([("began", 0.0), ("ended", 0.01), ("began", 0.0)], queue)
    for _ in range(6_000):
        waiting(queue, tenant=f"tenant {draw.randrange(3_000)}", cost=draw.uniform(100, 9_000))
    asking = [queue.entry("warm", f"tenant {number}", 500.0) for number in range(50)]
    told = [queue.expected_wait_s(entry, 0.01) for entry in asking]
    monkeypatch.setattr(class_queue, "SAMPLE", 10_000)
    exact = [queue.expected_wait_s(entry, 0.01) for entry in asking]
    assert max(exact) > 20
    assert told == pytest.approx(exact, rel=0.4, abs=1.0)


class Burst:
    """Instances with the given number of slots run for a minute at the given share of their capacity; then eight times
    as many requests arrive within `lasts` seconds.
    """

    def __init__(self, slots, held, limit, number, before=1 / 3, lasts=1.0):
        self.queue, self.numbers = AdmissionQueue(), random.Random(number)
        self.held, self.limit, self.free, self.turns = held, limit, slots, 0
        self.told, self.ratios, self.waiting = {}, [], []
        self.events, self.orders = [], itertools.count()
        mean = sum(held(self.numbers) for _ in range(2000)) / 2000
        pauses = self._pauses(mean / slots / before) if before else ()
        for at in itertools.takewhile(lambda at: at < 60.0, itertools.accumulate(pauses)):
            self._post(at, "asks")
        for _ in range(8 * slots):
            self._post(60.0 + lasts * self.numbers.random(), "asks")

    def _pauses(self, mean):
        return iter(lambda: self.numbers.expovariate(1 / mean), None)

    def _post(self, at, what, began=0.0):
        heapq.heappush(self.events, (at, next(self.orders), what, began))

    def _sends(self, now):
        self.free -= 1
        self.queue.began(now)
        self._post(now + self.held(self.numbers), "ends", now)

    def _asks(self, now, _):
        if self.free and not self.waiting:
            return self._sends(now)
        entry = self.queue.entry("warm")
        self.told.setdefault(self.turns + len(self.waiting) + 1, []).append(
            (now, self.queue.expected_wait_s(entry, now))
        )
        if len(self.waiting) < self.limit:
            self.queue.join(entry, self.limit, lambda: None)
            self.waiting.append(entry)
        return None

    def _ends(self, now, began):
        self.free, self.turns = self.free + 1, self.turns + 1
        self.ratios += [self._ratio(told, now - at) for at, told in self.told.pop(self.turns, ())]
        self.queue.ended(now, began)
        if self.waiting:
            entry = self.waiting.pop(0)
            self.queue.resume(entry)
            self.queue.admitted(entry)
            self._sends(now)

    def _ratio(self, told, real):
        """Return the ratio of two waits in whole seconds, as clients get them."""
        return max(1, math.ceil(told)) / min(MAX_WAIT_S, max(1, math.ceil(real)))

    def run(self):
        while self.events:
            now, _, what, began = heapq.heappop(self.events)
            (self._asks if what == "asks" else self._ends)(now, began)
        return self.ratios


of_slots = pytest.mark.parametrize("slots", [8, 64])
ABOUT_3_S = [
    pytest.param(lambda numbers: 3.0, id="all alike"),
    pytest.param(lambda numbers: numbers.uniform(2.0, 4.0), id="between 2 and 4 s"),
    pytest.param(lambda numbers: numbers.expovariate(1 / 3), id="exponential"),
]
LOGNORMAL = pytest.param(lambda numbers: 0.3 * math.exp(numbers.gauss(0.0, 1.0)), id="lognormal")


def told(slots, held, **burst):
    """Return, for each request of four bursts, the forecast and the wait that it would have had."""
    return [ratio for number in range(4) for ratio in Burst(slots, held, 4 * slots, number, **burst).run()]


@of_slots
@pytest.mark.parametrize("held", [*ABOUT_3_S, LOGNORMAL])
@pytest.mark.parametrize("before", [1 / 3, 1 / 30])
def test_in_a_burst_nine_of_ten_forecasts_are_within_a_factor_of_two(slots, held, before):
    ratios = told(slots, held, before=before)
    assert len(ratios) > 4 * 5 * slots
    assert sum(0.5 <= ratio <= 2.0 for ratio in ratios) >= 0.9 * len(ratios)


@of_slots
@pytest.mark.parametrize("held", ABOUT_3_S)
def test_in_a_routers_first_burst_no_forecast_is_five_times_the_wait_and_four_of_five_are_close(slots, held):
    ratios = told(slots, held, before=0.0, lasts=6.0)
    assert len(ratios) > 4 * 5 * slots
    assert max(ratios) < 5.0
    assert sum(0.5 <= ratio <= 2.0 for ratio in ratios) >= 0.8 * len(ratios)


def test_the_first_end_among_many_similar_requests_does_not_multiply_the_wait():
    drain = DrainRate()
    for _ in range(64):
        drain.began(0.0)
    before = drain.turn_s(3.0)
    drain.ended(3.0, 0.0)
    assert drain.turn_s(3.0) == pytest.approx(LONGER * before, rel=0.05)
