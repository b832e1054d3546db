"""The twin: a fleet of engines and the router before them, in virtual time. The same arguments, the same outcome.

One queue of events, (when, number, what is called, with what), and one heap entry for each engine that has something
to do. What a request meets is what it meets in the router (router/serving/proxy.py), by the router's own code where
that is pure: `decide`, sessions, prefix index, the queue for room.
"""

import math
import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from controlplane.traces.types import TraceRequest
from controlplane.twin.simulation.arrivals import Arrivals
from controlplane.twin.simulation.call import Call, Handover
from controlplane.twin.simulation.chains import Chains
from controlplane.twin.simulation.index import index_of
from controlplane.twin.simulation.queue_turn import Turn
from controlplane.twin.simulation.sim_endpoint import Seat
from controlplane.twin.simulation.sim_router import Desk
from controlplane.twin.simulation.transfers import Moves
from controlplane.twin.simulation.types import Outcome, Simulated, TwinFleet
from fleet.engine.engine import StepResult
from fleet.engine.request import Request
from router.policy.types import Decision, Policy
from router.pool.admission import QueueFull

SAMPLED_EVERY_S = 1.0  # engines' metrics, as nodes do it
PROGRESS_EVERY = 100  # requests
OFFLOADS = "offloads: each prompt is computed where its answer is, no KV moves between instances"

Event = tuple[float, int, Callable[[Any], None], Any]
Progress = Callable[[int, int], None]


def simulate(
    fleet: TwinFleet,
    policy: Policy,
    requests: Sequence[TraceRequest],
    *,
    pacing: str,
    seed: int,
    shadow: Policy | None = None,
    duration_s: float = math.inf,
    on_progress: Progress | None = None,
) -> Outcome:
    """Play a trace against the fleet. `pacing`: "timestamps" or "closed_loop", as in a replay; `duration_s`: in a
    closed loop no request begins after it; `shadow`: asked at each decision, in the same situation, without a say;
    `on_progress(done, total)`: now and then, may raise to stop."""
    run = _Run(fleet, policy, requests, pacing, seed, shadow, duration_s, on_progress)
    return run.outcome()


class _Run:
    def __init__(
        self,
        fleet: TwinFleet,
        policy: Policy,
        requests: Sequence[TraceRequest],
        pacing: str,
        seed: int,
        shadow: Policy | None,
        duration_s: float,
        on_progress: Progress | None,
    ) -> None:
        self._seed = seed
        self._total = len(requests)
        self._on_progress = on_progress
        draw = random.Random(seed)  # noqa: S311 - ties, no secret
        self._draws = {request.index: draw.random() for request in requests}  # the same under every policy
        self._chains = Chains(requests)
        self._seats = [
            Seat(name, place, model, self._chains.scaled(model))
            for place, (name, model) in enumerate(fleet.instances.items())
        ]
        self._by_name = {seat.name: seat for seat in self._seats}
        index = index_of(self._seats, self._chains.block_size)
        self._desk = Desk(self._seats, index, policy, shadow)
        self._moves = Moves(self._post, self._await)
        self._arrivals = Arrivals(requests, pacing, duration_s)
        self._now = 0.0
        self._ended_s = 0.0
        self._turns = 0
        self._open = 0  # sent or to be sent, and not over
        self._over: list[Simulated] = []
        self._left_out: dict[str, None] = {}  # in words, each once
        self._heap: list[Event] = []
        self._posted = 0

    def outcome(self) -> Outcome:
        for at, request in self._arrivals.first():
            self._expect(at, request)
        self._post(0.0, self._sample, None)
        heap = self._heap
        while self._open:
            self._now, _, call, given = heappop(heap)
            call(given)
        self._over.sort(key=lambda one: one.index)
        use, left_out = {seat.name: seat.use() for seat in self._seats}, tuple(self._left_out)
        return Outcome(tuple(self._over), use, self._ended_s, left_out)

    # The client

    def _expect(self, at: float, request: TraceRequest) -> None:
        self._open += 1
        self._post(at, self._arrive, request)

    def _arrive(self, request: TraceRequest) -> None:
        chain = self._chains.prompts[request.index]
        session = self._desk.session_of(request.session, chain)
        call = Call(request, self._now, chain, session, self._turns, self._draws[request.index])
        self._turns += 1
        self._choose(call)

    def _end(self, call: Call, outcome: str, code: str = "") -> None:
        self._over.append(call.over(self._seed, self._now, outcome, code))
        self._ended_s = self._now
        self._open -= 1
        following = self._arrivals.after(call.request, self._now)
        if following is not None:
            self._expect(*following)
        if self._on_progress is not None and len(self._over) % PROGRESS_EVERY == 0:
            self._on_progress(len(self._over), self._total)

    # The router

    def _choose(self, call: Call) -> None:
        """Decide, and send it or let it wait for room."""
        queue, place = self._desk.queue, call.place
        decision = self._desk.decide(call, self._now)
        if decision.instance and (place is not None or not len(queue)):
            if place is not None:
                queue.admitted(place, self._now)
            self._send(call, decision)
        elif decision.instance or decision.rule == "nobody":
            self._wait(call, decision)
        else:  # the route itself wants nobody to take it
            if place is not None:
                queue.leave(place)
            self._end(call, "refused", decision.rule)

    def _wait(self, call: Call, decision: Decision) -> None:
        desk, queue = self._desk, self._desk.queue
        if call.place is None:
            call.place = queue.place(decision.request_class, cost=desk.cost(decision))
        place, turn = call.place, Turn(call, self._called)
        try:
            queue.join(place, desk.longest_queue(place.request_class), turn, room=bool(decision.instance))
        except QueueFull:
            self._end(call, "refused", "saturated")
            return
        call.waits_since_s = self._now
        self._post(self._now + desk.longest_wait_s(place.request_class) - call.queued_s, self._give_up, (call, turn))

    def _called(self, call: Call) -> None:
        self._post(self._now, self._look, call)

    def _look(self, call: Call) -> None:
        """There may be room for it."""
        assert call.place is not None  # noqa: S101 - narrows the type: who is called has waited
        self._desk.queue.look(call.place)
        call.queued_s += self._now - call.waits_since_s
        self._choose(call)

    def _give_up(self, waiting: tuple[Call, Turn]) -> None:
        """It has waited for as long as its class may, if it still waits."""
        call, turn = waiting
        if turn.done() or call.place is None:
            return
        turn.stop()
        self._desk.queue.give_up(call.place)
        call.queued_s += self._now - call.waits_since_s
        self._end(call, "refused", "queue_timeout")

    def _send(self, call: Call, decision: Decision) -> None:
        seat = self._by_name[decision.instance]
        request = call.request
        work = Request(
            str(request.index), request.input_tokens, request.output_tokens, self._chains.whole(request), owner=call
        )
        if not seat.fits(work):
            self._end(call, "error", "too_long")
            self._desk.queue.wake()
            return
        call.work = work
        self._desk.sent(call, seat, self._now)
        if decision.prefill and seat.model.transfers is not None:
            prefill = self._prefill_of(call)
            sender, transfers = self._by_name[decision.prefill], seat.model.transfers
            call.handover = Handover(sender, seat, transfers, decision.prefill_new_tokens, prefill, work)
            seat.sent(call.leased)
            self._prefill(call, call.handover)
            return
        if decision.prefill:
            self._left_out[OFFLOADS] = None
        seat.sent(call.leased)
        call.alone = seat.requests == 1 and not call.queued_s
        seat.engine.add_request(work, self._now)
        self._await(seat)

    # Prompts computed on one instance for another

    def _prefill_of(self, call: Call) -> Request:
        request = call.request
        chain = self._chains.whole(request)[: request.input_tokens // self._chains.block_size]
        return Request(f"{request.index}-prefill", request.input_tokens, 1, chain, owner=call, held=True)

    def _prefill(self, call: Call, handover: Handover) -> None:
        sender = handover.sender
        self._desk.computes(call, sender)
        sender.sent(handover.new_tokens)
        sender.engine.add_request(handover.prefill, self._now)
        self._await(sender)

    # The engines

    def _await(self, seat: Seat) -> None:
        """Something changed there: when does the engine want to be called next?"""
        due_s = seat.engine.next_turn_s()
        if due_s is not None and due_s < self._now:
            due_s = self._now
        if due_s != seat.due_s:
            seat.due_s = due_s
            if due_s is not None:
                self._post(due_s, self._turn, seat)

    def _turn(self, seat: Seat) -> None:
        engine, now = seat.engine, self._now
        if seat.due_s != now:
            return  # it is due at another time by now
        while seat.due_s == now:
            result = engine.turn(now)
            if result is not None:
                self._hear(seat, result)
            seat.due_s = engine.next_turn_s()
        if seat.due_s is not None:
            self._post(seat.due_s, self._turn, seat)
        for work in engine.take_pulls() if seat.model.transfers is not None else ():
            self._moves.pull(work.owner.handover, self._now)

    def _hear(self, seat: Seat, result: StepResult) -> None:
        for work in result.first:
            self._began(seat, work, work.owner)
        for work in result.finished:
            seat.ended()
            call: Call = work.owner
            work.owner = None  # which holds it too: a ring that only the collector would find
            if work is call.work:
                self._desk.answered(call, seat, work)
                self._end(call, "ok")
            elif call.handover is not None:
                self._moves.computed(call.handover, self._now)
            self._desk.queue.wake()

    def _began(self, seat: Seat, work: Request, call: Call) -> None:
        handover = call.handover
        self._desk.began(call, seat)
        if handover is None:
            seat.began(call.leased)
            call.alone &= seat.requests == 1
        elif work is handover.prefill:
            seat.began(handover.new_tokens)
        else:
            seat.began(0)
            self._moves.let_go(handover)
            self._desk.moved(handover, self._now)

    def _sample(self, _: None) -> None:
        for seat in self._seats:
            seat.sample(self._now)
        self._post(self._now + SAMPLED_EVERY_S, self._sample, None)

    def _post(self, at: float, call: Callable[[Any], None], given: Any) -> None:
        self._posted += 1
        heappush(self._heap, (at, self._posted, call, given))
