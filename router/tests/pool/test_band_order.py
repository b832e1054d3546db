"""Bands, lifts and tokens in the admission queue, measured on a single server."""

import heapq
from random import Random

import pytest

from router.policy.schema import document
from router.policy.types import Decision
from router.pool.admission import Admission, Wait
from router.pool.load.output_guess import UNKNOWN, OutputGuess
from router.pool.queue.admission_queue import AdmissionQueue
from router.pool.queue.class_queue import ClassQueue, QueueEntry


def policy(**overrides):
    named = {f"admission.{name}": value for name, value in overrides.items()}
    return document.parse(document.apply_overrides(document.default(), named))


WIDE = {f"max_queue_{name}": 100_000 for name in ("warm", "medium", "heavy")}
WIDE |= {f"max_wait_{name}_s": 3_600.0 for name in ("warm", "medium", "heavy")}


class Server:
    """A server that handles one request after another; each takes as long as its tokens take to compute and to
    generate.
    """

    def __init__(self, rule, speed=10_000.0):
        self.queue, self.rule, self.speed = AdmissionQueue(), rule, speed
        self.queue.follow(rule)
        self.events, self.number, self.busy, self.waited_s = [], 0, False, {}

    def at(self, when, call, *given):
        self.number += 1
        heapq.heappush(self.events, (when, self.number, call, given))

    def ask(self, when, name, tokens, output=50, band=0, tenant=""):
        self.at(when, self._arrive, name, tokens, output, band, tenant)

    def run(self):
        while self.events:
            self.now, _, call, given = heapq.heappop(self.events)
            call(*given)
        return list(self.waited_s)

    def _arrive(self, name, tokens, output, band, tenant):
        self._try(name, tokens, output, Admission(self.queue, self.now, tenant, band=band))

    def _resume(self, name, tokens, output, admission):
        if admission.resume(self.now) is None:
            self._try(name, tokens, output, admission)

    def _try(self, name, tokens, output, admission):
        decision = Decision("" if self.busy else "a", "warm", "colocated", "", "", (), 0, tokens, ())
        if admission.admits(decision, self.now):
            self.busy = True
            self.queue.began(self.now)
            self.waited_s[name] = admission.queued_s
            self.at(self.now + (tokens + 2 * output) / self.speed, self._end, self.now, tokens, output, admission)
        elif isinstance(admission.put_off(decision, self.rule, self.now, lambda: True), Wait):
            again = name, tokens, output, admission
            admission.when_woken(lambda: self.at(self.now, self._resume, *again))

    def _end(self, began, tokens, output, admission):
        self.busy = False
        self.queue.outputs.answered(output)
        admission.settle(tokens, output)
        self.queue.ended(self.now, began)


def p99(values):
    return sorted(values)[int(0.99 * (len(values) - 1))]


def waits_of(server, tenant):
    return [waited for (who, _), waited in server.waited_s.items() if who == tenant]


def test_long_prompts_of_one_tenant_delay_anothers_short_ones_by_at_most_one_prompt():
    """Tenant A sends 1,000 prompts of 8,000 tokens at once; tenant B sends 20 of 100 tokens, 0.5 s apart."""
    alone, beside = Server(policy(**WIDE)), Server(policy(**WIDE))
    for number in range(1_000):
        beside.ask(0.0, ("a", number), 8_000, tenant="a")
    for server in (alone, beside):
        for number in range(20):
            server.ask(5.0, ("b", number), 100, tenant="b")
        server.run()
    one_of_a_s = (8_000 + 2 * 50) / beside.speed
    assert p99(waits_of(beside, "b")) <= 2 * p99(waits_of(alone, "b")) + one_of_a_s
    assert len(waits_of(beside, "a")) == 1_000


def test_a_higher_band_waits_only_for_the_running_request():
    server = Server(policy(**WIDE, band_max_wait_s=3_600.0))
    draw = Random(7)
    for number in range(300):
        server.ask(number * 0.05, ("usual", number), 1_000)
    for number in range(40):
        server.ask(draw.uniform(1, 25), ("high", number), 100, output=1, band=5, tenant=f"t{number % 3}")
    server.run()
    longest = (1_000 + 2 * 50 + 40 * 102) / server.speed
    assert p99(waits_of(server, "high")) <= longest
    assert p99(waits_of(server, "usual")) > 10 * longest


def test_each_wait_raises_a_request_by_one_band_so_later_requests_overtake_it_only_for_a_while():
    server = Server(policy(**WIDE, band_max_wait_s=2.0))
    server.ask(0.0, "running", 1_000, output=0)
    server.ask(0.01, "low", 1_000, output=0, band=-2)
    for number in range(400):  # twice as many as the server can handle in that time
        server.ask(0.02 + number * 0.05, number, 1_000, output=0)
    order = server.run()
    overtook = order[1 : order.index("low")]
    # Two bands lower: requests that came up to 4 s later, and up to 2 s until its next lift.
    assert 4.0 <= server.waited_s["low"] <= 13.0
    assert max(overtook) * 0.05 <= 6.1


def test_a_tenant_is_charged_for_its_actual_use_not_for_the_expected_one():
    server = Server(policy(**WIDE))
    for number in range(200):
        server.ask(0.0, ("long", number), 100, output=1_000, tenant="a")
        server.ask(0.0, ("short", number), 100, output=10, tenant="b")
    order = server.run()
    assert waits_of(server, "short") != []
    first = [who for who, _ in order[:100]]
    # 2,100 tokens against 120: of the first hundred, about six are long
    assert first.count("long") == pytest.approx(6, abs=4)


def test_the_output_is_estimated_from_recent_answers_and_the_request_s_own_limit():
    guess = OutputGuess()
    assert (guess.tokens(None), guess.tokens(10), guess.tokens(10_000)) == (UNKNOWN, 10, UNKNOWN)
    for _ in range(1_000):
        guess.answered(100)
    assert guess.tokens(None) == pytest.approx(100)
    assert guess.tokens(7) == 7


def test_the_turns_of_a_class_stay_few_however_many_tenants_wait():
    """The heap of turns is pruned to about two entries per waiting tenant, however many tenants joined and left."""
    queue, draw = ClassQueue(), Random(3)
    waiting = [QueueEntry(number, "warm", f"t{draw.randrange(50)}", draw.uniform(1, 9)) for number in range(5_000)]
    for entry in waiting:
        queue.put(entry)
    last = {}
    for _ in waiting:
        first = queue.first([])
        assert last.get(first.tenant, -1) < first.order, "within a tenant: first come, first served"
        last[first.tenant] = first.order
        queue.charge(first)
        queue.drop(first)
        assert len(queue._heap) <= 2 * 50 + 70
    assert (len(queue), queue._tenants) == (0, {})
