"""The twin: a fleet of engines and its router in virtual time. Deterministic: equal arguments give equal outcomes.

One heap of events (time, number, function, argument), with one event per busy engine. Requests go through the router's
own pure code: `decide`, sessions, prefix index, admission (router/pool/admission.py).
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.arrivals import Arrivals
from controlplane.evidence.twin.simulation.calibrated_load import outside_of
from controlplane.evidence.twin.simulation.call import Handover, SimCall
from controlplane.evidence.twin.simulation.chains import TraceChains, TracePrompts, prompts_of
from controlplane.evidence.twin.simulation.index import index_of
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint, SimStepGroup, step_groups
from controlplane.evidence.twin.simulation.sim_router import SimRouter
from controlplane.evidence.twin.simulation.transfers import SimTransfers
from controlplane.evidence.twin.simulation.types import Arms, Simulated, TwinFleet, TwinOutcome
from fleet.engine.engine import StepResult
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.shared import SharedStore
from router.contract.connectors import MOONCAKE_STORE
from router.policy.types import Decision, ParsedPolicy
from router.pool.admission import Admission, Wait

SAMPLED_EVERY_S = 1.0  # interval between metric scrapes, as on a node
PROGRESS_EVERY = 100  # requests between progress reports
OFFLOADS = "offloads: each prompt is computed on the instance that decodes, no KV moves between instances"

Event = tuple[float, int, Callable[[Any], None], Any]
Progress = Callable[[int, int], None]


def simulate(
    fleet: TwinFleet,
    policy: ParsedPolicy,
    requests: Sequence[TraceRequest],
    *,
    pacing: str,
    seed: int,
    shadow: ParsedPolicy | None = None,
    arms: Arms | None = None,
    duration_s: float = math.inf,
    on_progress: Progress | None = None,
    prompts: TracePrompts | None = None,
    draws: Mapping[int, float] | None = None,
) -> TwinOutcome:
    """Play a trace against the fleet. `pacing` is "timestamps" or "closed_loop", as in a replay; `duration_s` is the
    end of a closed loop. `shadow` decides beside the policy, without effect. With `arms`, a candidate decides some
    requests instead. `on_progress(done, total)` may raise an exception to stop. `prompts` are those of the requests, if
    another simulation has built them. `draws` are the random numbers of the decisions in [0, 1) by index, used instead
    of the seed's.
    """
    return Simulation(
        fleet, policy, requests, prompts, pacing, seed, shadow, arms, duration_s, on_progress, draws
    ).outcome()


def _drawn(requests: Sequence[TraceRequest], seed: int) -> dict[int, float]:
    draw = random.Random(seed)  # noqa: S311 - ties, no secret
    return {request.index: draw.random() for request in requests}


class Simulation:
    """A simulation of a trace, with the arguments of `simulate`, that can pause."""

    def __init__(
        self,
        fleet: TwinFleet,
        policy: ParsedPolicy,
        requests: Sequence[TraceRequest],
        prompts: TracePrompts | None,
        pacing: str,
        seed: int,
        shadow: ParsedPolicy | None = None,
        arms: Arms | None = None,
        duration_s: float = math.inf,
        on_progress: Progress | None = None,
        draws: Mapping[int, float] | None = None,
    ) -> None:
        self._seed, self._total, self._on_progress = seed, len(requests), on_progress
        self._awaited = {request.index for request in requests}  # requests whose end is awaited
        self._draws = draws or _drawn(requests, seed)  # the same under every policy
        self._chains = TraceChains(prompts or prompts_of(requests))
        self._store = SharedStore(fleet.store, self._chains.block_size) if fleet.store is not None else None
        self._endpoints = [
            SimEndpoint(name, position, model, self._chains.scaled(model), self._store)
            for position, (name, model) in enumerate(fleet.instances.items())
        ]
        self._unsettled = dict.fromkeys(self._endpoints)  # only these are sampled, because few of many engines are busy
        self._by_name = {endpoint.id: endpoint for endpoint in self._endpoints}
        index = index_of(self._endpoints, self._chains.block_size)
        self._transfers = SimTransfers(self._post, self._schedule)
        self._sim_router = SimRouter(self._endpoints, index, policy, shadow, self._transfers.lent, arms)
        self._step_groups = step_groups(self._endpoints)  # after the router has grouped the endpoints
        self._arrivals = Arrivals(requests, pacing, duration_s)
        self._now, self._ended_s, self._turns, self._samples = 0.0, 0.0, 0, 0  # samples are per instance
        self._over: list[Simulated] = []
        self._not_modelled: dict[str, None] = {}  # each once
        self._heap: list[Event] = []
        first = [(at, number, request) for number, (at, request) in enumerate(self._arrivals.first(), start=1)]
        self._posted = self._open = len(first)  # `_open`: requests scheduled or in flight
        # Putting all of them on the heap would slow down every event
        self._first = iter(sorted(first, key=itemgetter(0)))
        self._post_first()
        self._post(0.0, self._sample, None)

    def first(self, count: int) -> TwinOutcome:
        """Return the outcome of the first requests once they have ended; the simulation can continue from there."""
        later = {index for index in self._awaited if index >= count}
        self._awaited -= later
        self._go_on()
        self._awaited = later
        return self._outcome([one for one in self._over if one.index < count])

    def outcome(self) -> TwinOutcome:
        """Return the outcome of all requests."""
        self._go_on()
        if self._on_progress is not None:
            self._on_progress(len(self._over), self._total)
        return self._outcome(self._over)

    def _go_on(self) -> None:
        """Process events until the awaited requests have ended."""
        heap, awaited = self._heap, self._awaited
        while awaited and self._open:
            self._now, _, call, given = heappop(heap)
            call(given)

    def _outcome(self, over: list[Simulated]) -> TwinOutcome:
        over.sort(key=lambda one: one.index)
        use = {endpoint.id: endpoint.use(self._samples) for endpoint in self._endpoints}
        left_out = tuple(self._not_modelled)
        store = self._store.stats() if self._store is not None else None
        outside = outside_of(self._endpoints, over)
        return TwinOutcome(tuple(over), use, self._ended_s, left_out, store, outside)

    # The client

    def _post_first(self) -> None:
        """Post the next arrival that does not wait for an answer; at equal times it precedes all other events."""
        coming = next(self._first, None)
        if coming is not None:
            at, number, request = coming
            heappush(self._heap, (at, number, self._arrive_first, request))

    def _arrive_first(self, request: TraceRequest) -> None:
        self._post_first()
        self._arrive(request)

    def _schedule_arrival(self, at: float, request: TraceRequest) -> None:
        self._open += 1
        self._post(at, self._arrive, request)

    def _arrive(self, request: TraceRequest) -> None:
        chain = self._chains.prompts[request.index]
        session = self._sim_router.session_of(request.session, chain)
        admission = Admission(self._sim_router.queue, self._now, request.tenant, band=request.band)
        call = SimCall(request, self._now, admission, chain, session, self._turns, self._draws[request.index])
        self._turns += 1
        self._sim_router.assign(call)
        self._choose(call)

    def _end(self, call: SimCall, outcome: str, code: str = "") -> None:
        self._over.append(call.over(self._seed, self._now, outcome, code))
        self._awaited.discard(call.request.index)
        self._ended_s = self._now
        self._open -= 1
        following = self._arrivals.after(call.request, self._now)
        if following is not None:
            self._schedule_arrival(*following)
        if self._on_progress is not None and len(self._over) % PROGRESS_EVERY == 0:
            self._on_progress(len(self._over), self._total)

    # The router

    def _choose(self, call: SimCall) -> None:
        """Decide, then send the request, let it wait or refuse it."""
        sim_router = self._sim_router
        decision = sim_router.decide(call, self._now)
        if call.admission.admits(decision, self._now):
            self._send(call, decision)
            return
        step = call.admission.put_off(decision, sim_router.policy_of(call), self._now, partial(sim_router.able, call))
        if isinstance(step, Wait):
            call.admission.when_woken(partial(self._post_resume, call))
            self._post(step.until, self._expire, (call, step))
        else:
            self._end(call, "refused", step.code)

    def _post_resume(self, call: SimCall) -> None:
        self._post(self._now, self._resume, call)

    def _expire(self, waiting: tuple[SimCall, Wait]) -> None:
        call, wait = waiting
        if call.admission.state == "queued" and call.admission.wait is wait:
            self._resume(call)

    def _resume(self, call: SimCall) -> None:
        """Resume a request after a wakeup, or at the end of its wait."""
        refusal = call.admission.resume(self._now)
        if refusal is None:
            self._choose(call)
        else:
            self._end(call, "refused", refusal.code)

    def _send(self, call: SimCall, decision: Decision) -> None:
        endpoint = self._by_name[decision.instance]
        request = call.request
        work = EngineRequest(
            str(request.index), request.input_tokens, request.output_tokens, self._chains.whole(request), owner=call
        )
        call.slot_s = self._now
        self._sim_router.queue.drain.began(call.slot_s)
        if not endpoint.fits(work):
            self._end(call, "client_error", "too_long")
            self._sim_router.queue.ended(self._now, call.slot_s)
            return
        call.work, call.media = work, endpoint.media
        pulls = decision.pull_ms is not None and endpoint.model.transfers is not None
        self._sim_router.sent(call, endpoint, self._now, pulls=pulls)
        if decision.prefill and endpoint.model.transfers is not None:
            store = self._store if endpoint.model.connector == MOONCAKE_STORE else None
            prefill = self._prefill_of(call, held=store is None)
            sender, transfers = self._by_name[decision.prefill], endpoint.model.transfers
            new_tokens = decision.prefill_new_tokens
            call.handover = Handover(sender, endpoint, transfers, new_tokens, prefill, work, store=store)
            endpoint.sent(call.leased)
            self._take_lent(call, call.handover)
            if pulls:
                call.handover.pull_begins(decision.pull_tokens, (decision.pull_ms or 0.0) / 1000)
            self._prefill(call, call.handover)
            if transfers.together:
                self._transfers.ask(call.handover, self._now)
                self._unsettled[endpoint] = None
            return
        if decision.prefill:
            self._not_modelled[OFFLOADS] = None
        endpoint.sent(call.leased)
        call.alone = endpoint.requests == 1 and not call.admission.queued_s
        endpoint.engine.add_request(work, self._now)
        self._schedule(endpoint)

    def _take_lent(self, call: SimCall, handover: Handover) -> None:
        found, sender = self._transfers.lent(call), handover.sender
        if found is not None and sender.model.role == "prefill":
            tokens = self._sim_router.offered(call, sender, found[1])
            if tokens is not None:
                self._transfers.take(call.session or "", handover, tokens, self._now)
        handover.work.held = handover.transfers.lend_s > 0 and handover.store is None

    # Prompts computed on one instance for another

    def _prefill_of(self, call: SimCall, *, held: bool) -> EngineRequest:
        request = call.request
        chain = self._chains.whole(request)[: request.input_tokens // self._chains.block_size]
        return EngineRequest(f"{request.index}-prefill", request.input_tokens, 1, chain, owner=call, held=held)

    def _prefill(self, call: SimCall, handover: Handover) -> None:
        sender = handover.sender
        self._sim_router.computes(call, sender)
        sender.sent(handover.new_tokens)
        sender.engine.add_request(handover.prefill, self._now)
        self._schedule(sender)

    # The engines

    def _schedule(self, endpoint: SimEndpoint) -> None:
        """Schedule the engine's next event after a change."""
        self._unsettled[endpoint] = None
        group = self._step_groups.get(endpoint) if self._step_groups else None
        if group is not None:
            self._schedule_group(group)
            return
        due_s = endpoint.engine.next_turn_s()
        if due_s is not None and due_s < self._now:
            due_s = self._now
        if due_s != endpoint.due_s:
            endpoint.due_s = due_s
            if due_s is not None:
                self._post(due_s, self._run_engine, endpoint)

    def _schedule_group(self, group: SimStepGroup) -> None:
        due_s = group.lockstep.next_turn_s()
        if due_s is not None and due_s < self._now:
            due_s = self._now
        if due_s != group.due_s:
            group.due_s = due_s
            if due_s is not None:
                self._post(due_s, self._run_group, group)

    def _run_group(self, group: SimStepGroup) -> None:
        now = self._now
        if group.due_s != now:
            return  # rescheduled
        while group.due_s == now:
            for endpoint, result in zip(group.endpoints, group.lockstep.turn(now), strict=False):
                if result is not None:
                    self._engine_result(endpoint, result)
            group.due_s = group.lockstep.next_turn_s()
        if group.due_s is not None:
            self._post(group.due_s, self._run_group, group)
        for endpoint in group.endpoints:
            self._take(endpoint)

    def _run_engine(self, endpoint: SimEndpoint) -> None:
        engine, now = endpoint.engine, self._now
        if endpoint.due_s != now:
            return  # rescheduled
        while endpoint.due_s == now:
            result = engine.turn(now)
            if result is not None:
                self._engine_result(endpoint, result)
            endpoint.due_s = engine.next_turn_s()
        if endpoint.due_s is not None:
            self._post(endpoint.due_s, self._run_engine, endpoint)
        self._take(endpoint)

    def _take(self, endpoint: SimEndpoint) -> None:
        """Handle the loads for which the engine has begun to wait, and the requests that have failed there."""
        for work in endpoint.engine.take_pulls() if endpoint.receives else ():
            self._pull(endpoint, work)
        for work in endpoint.engine.take_failed() if endpoint.model.tiers is not None else ():
            self._fail(endpoint, work)

    def _pull(self, endpoint: SimEndpoint, work: EngineRequest) -> None:
        handover = work.owner.handover
        if handover is not None and work is handover.prefill and handover.lent is not None:
            self._transfers.pull_lent(handover, self._now)
        elif handover is not None and work is handover.work and handover.store is None:
            self._transfers.pull(handover, self._now)
        elif self._store is not None:
            self._transfers.load(self._store, endpoint, work, self._now)

    def _fail(self, endpoint: SimEndpoint, work: EngineRequest) -> None:
        """Fail a request that ran out of GPU memory while it loaded its KV."""
        call: SimCall = work.owner
        handover = call.handover
        leases = {endpoint: call.leased}
        if handover is not None:
            handover.pull_ends()
            if work is handover.prefill:
                leases = {endpoint: handover.new_tokens, handover.receiver: 0}
            else:
                self._transfers.let_go(handover, self._now)
        for involved, new_tokens in leases.items():
            if handover is None or handover.pull_s is None or involved is handover.sender:
                self._sim_router.began(call, involved)  # If a pull has not arrived, nothing is expected there
            involved.began(new_tokens)
            involved.ended()
        self._end(call, "error", "out_of_memory")
        self._sim_router.queue.ended(self._now, call.slot_s)

    def _engine_result(self, endpoint: SimEndpoint, result: StepResult) -> None:
        for work in result.first:
            self._began(endpoint, work, work.owner)
        for work in result.finished:
            endpoint.ended()
            call: SimCall = work.owner
            work.owner = None  # breaks a reference cycle
            if work is call.work:
                self._sim_router.answered(call, endpoint, work)
                self._end(call, "ok")
                if work.held and call.handover is not None:
                    lend_s = call.handover.transfers.lend_s
                    self._transfers.lend(call.session, endpoint, work, lend_s, self._now)
                self._sim_router.queue.ended(self._now, call.slot_s)
                continue
            if call.handover is not None:
                self._transfers.computed(call.handover, self._now)
            self._sim_router.queue.wake()

    def _began(self, endpoint: SimEndpoint, work: EngineRequest, call: SimCall) -> None:
        handover = call.handover
        if handover is not None and handover.pull_s is not None and work is handover.work:
            handover.pull_ends()
            self._sim_router.pulled(call, endpoint)
        self._sim_router.began(call, endpoint)
        if self._store is not None:
            self._store.put(work.chain[: work.prompt_tokens // self._chains.block_size])
        if handover is None:
            endpoint.began(call.leased)
            call.alone &= endpoint.requests == 1
        elif work is handover.prefill:
            endpoint.began(handover.new_tokens)
            self._transfers.end_lent(handover, self._now)
        else:
            endpoint.began(0)
            self._transfers.let_go(handover, self._now)
            self._sim_router.moved(handover, call.slot_s, self._now)

    def _sample(self, _: None) -> None:
        for endpoint in self._unsettled:
            endpoint.sample(self._now, self._samples)
        self._samples += 1
        self._unsettled = dict.fromkeys(endpoint for endpoint in self._unsettled if not endpoint.is_settled)
        self._post(self._now + SAMPLED_EVERY_S, self._sample, None)

    def _post(self, at: float, call: Callable[[Any], None], given: Any) -> None:
        self._posted += 1
        heappush(self._heap, (at, self._posted, call, given))
