"""One inference engine in virtual time: requests in, steps out. No clock and no I/O: the simulated engine drives it by
the wall clock, the twin by its event queue.

    engine.add_request(request, now)      a request arrives
    engine.next_event_s()                 time of the next event
    engine.advance(until)                 the steps that end by then

An event queue of many engines calls each engine as rarely as possible:

    engine.next_turn_s()                  when to call it
    engine.turn(now)                      ends the current step or starts the next one
"""

import math
import sys
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from fleet.engine.blocks import BlockPool
from fleet.engine.law import API_S, API_S_PER_TOKEN, Law
from fleet.engine.neuron_batches import BATCHING
from fleet.engine.power import Clock
from fleet.engine.request import DecodeRun, EngineRequest, run_s, steps_within
from fleet.engine.scheduler import Limits, StepPlan
from fleet.engine.tiers.engine_tiers import EngineTiers
from fleet.engine.tiers.model import TiersModel, TiersStats
from fleet.engine.tiers.shared import SharedStore


class RequestTooLong(ValueError):
    """Prompt and answer do not fit into the KV cache."""


@dataclass(slots=True)
class StepResult:
    """One step, or several consecutive decode steps of the same batch."""

    start_s: float
    end_s: float
    steps: int
    scheduled: int  # tokens per step
    emitted: list[EngineRequest]  # requests that got one token in every step
    first: list[EngineRequest] = field(default_factory=list)  # requests among them that got their first token
    finished: list[EngineRequest] = field(default_factory=list)
    resumed: list[tuple[EngineRequest, float]] = field(default_factory=list)  # (request, s since its last token)
    pairs: float = 0.0  # as in Law.step_s
    context: float = 0.0  # as in Law.step_s; the mean over several steps
    decodes: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def tokens(self) -> dict[str, int]:
        """Return the new tokens per request."""
        return {request.id: self.steps for request in self.emitted}


@dataclass(frozen=True, slots=True)
class Stats:
    running: int
    waiting: int
    kv_usage: float  # share of the blocks in use, 0–1
    cache_queries: int  # tokens looked up
    cache_hits: int  # tokens found
    preemptions: int
    pull_queries: int = 0  # prompt tokens requested from other instances or a store
    pull_hits: int = 0  # pulled tokens that arrived
    held_blocks: int = 0  # blocks of finished requests, held until another engine pulls them
    transferring: int = 0  # requests whose KV is being sent or received
    blocked_s: float = 0.0  # virtual seconds for which requests waited although nothing was computed
    tiers: TiersStats | None = None  # tiers below HBM
    arithmetic_s: float = 0.0  # energy of arithmetic as in power.Clock


def _in_store(store: SharedStore, block_size: int, request: EngineRequest) -> int:
    """Return the number of leading prompt tokens that this engine and the store hold together."""
    here = request.computed // block_size
    return (here + store.look_up(request.chain, here, request.prompt_tokens // block_size)) * block_size


class Engine:
    def __init__(
        self,
        law: Law,
        blocks: int,
        limits: Limits | None = None,
        *,
        api_s: float = API_S,
        api_s_per_token: float = API_S_PER_TOKEN,
        record_events: bool = False,
        tiers: TiersModel | None = None,
        store: SharedStore | None = None,
    ) -> None:
        self.law = law
        self.limits = limits or Limits()
        self.pool = BlockPool(blocks, record_events=record_events)
        self.clock_s = 0.0  # end of the last step
        self._planned_s = 0.0  # time at which the next step is planned, which admits requests ready by then
        self._clock = Clock(law.draws) if law.computing_draw else None
        self._api_s = api_s
        self._api_s_per_token = api_s_per_token
        size, chunk = self.limits.block_size, self.limits.max_num_batched_tokens
        self._tiers = EngineTiers(tiers, law, self.pool, size, chunk) if tiers is not None else None
        self._scheduler = BATCHING[self.limits.batching](self.pool, self.limits, self._tiers)
        if store is not None:
            self._scheduler.store = partial(_in_store, store, size)
        self._arriving: deque[EngineRequest] = deque()  # requests passing through the API, in order
        self._awaiting: set[EngineRequest] = set()  # requests whose prompts are being computed by another engine
        self._plan: StepPlan | None = None  # the step in progress
        self.blocked_s = 0.0
        self._blocked_since: float | None = None
        self._decode_run: DecodeRun | None = None  # next decode steps; None: not computed yet
        self._equal_steps = 0  # number of equal steps before a request joins or is preempted; 0: not computed yet
        self._requests: dict[str, EngineRequest] = {}
        self._held: dict[str, EngineRequest] = {}  # finished requests whose blocks are still in use
        self._pulls: list[EngineRequest] = []  # result of the next `take_pulls`
        self._failed: list[EngineRequest] = []  # result of the next `take_failed`

    def add_request(self, request: EngineRequest, now_s: float) -> None:
        """Add a request. Requests must arrive in order of time; a late one queues behind the others. A request with
        `awaits_prefill` queues only after `prefilled` is called. Raise RequestTooLong."""
        total = request.prompt_tokens + request.output_tokens
        capacity = self.pool.total * self.limits.block_size
        if total > capacity:
            raise RequestTooLong(f"{request.id}: {total} tokens, the KV cache holds {capacity}")
        request.arrived_s = now_s
        self._requests[request.id] = request
        if request.awaits_prefill:
            self._awaiting.add(request)
            return
        ready_s = now_s + self._api_s + self._api_s_per_token * request.prompt_tokens
        request.ready_s = max(ready_s, self._arriving[-1].ready_s if self._arriving else 0.0)
        self._arriving.append(request)
        self._equal_steps = 0
        if self._tiers is not None:
            if self._is_idle:
                self._tiers.settle(now_s)
            self._tiers.arrived(request, now_s)

    def abort(self, request_id: str) -> EngineRequest | None:
        """Remove a request and free its blocks. Return None if it is unknown or has ended."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        request.finished_s = self.clock_s
        self._decode_run, self._equal_steps = None, 0
        if self._tiers is not None:
            self._tiers.left(request)
        if request in self._awaiting:
            self._awaiting.remove(request)
        elif request in self._arriving:
            self._arriving.remove(request)
            self._scheduler.release(request)  # a request with pulled KV already has blocks
        else:
            self._scheduler.release(request)
        return request

    def below(self, key: int) -> str:
        """Return the medium of the fastest tier below the GPU that holds this block; empty if none does."""
        return self._tiers.held(key) if self._tiers is not None else ""

    def take_pulls(self) -> list[EngineRequest]:
        """Return the requests that have begun to wait for transferred KV since the last call; call `pulled` or `abort`
        for each."""
        pulls, self._pulls = self._pulls, []
        return pulls

    def prefilled(self, request: EngineRequest, now_s: float) -> None:
        """Queue a request for the transfer after another engine has computed its prompt."""
        if request in self._awaiting:
            self._awaiting.remove(request)
            request.awaits_prefill = False
            self._queue_at_once(request, now_s)

    def take_failed(self) -> list[EngineRequest]:
        """Return the requests that have run out of GPU memory while loading KV since the last call; they have ended."""
        failed, self._failed = self._failed, []
        return failed

    def pulled(self, request: EngineRequest, tokens: int, now_s: float) -> None:
        """Let a request continue with the next step: KV of `tokens` prompt tokens has arrived. If it is 0, the prompt
        is computed here."""
        if not request.is_over:
            self._scheduler.pulled(request, tokens)
            self._queue_at_once(request, now_s)

    def _queue_at_once(self, request: EngineRequest, now_s: float) -> None:
        request.ready_s = min(now_s, self._arriving[0].ready_s) if self._arriving else now_s
        self._arriving.appendleft(request)
        self._equal_steps = 0

    def held(self, request_id: str) -> EngineRequest | None:
        """Return a finished request whose blocks are held for another engine."""
        return self._held.get(request_id)

    def release_held(self, request_id: str, now_s: float) -> bool:
        request = self._held.pop(request_id, None)
        if request is None:
            return False
        if self._plan is None and not self.running:
            # Requests that have waited for these blocks start now, not at the last step.
            self.clock_s = max(self.clock_s, now_s)
        self._scheduler.free(request)
        return True

    def reset_cache(self) -> bool:
        """Empty HBM; lower tiers keep their blocks."""
        if self._tiers is not None:
            self._tiers.flush()
        return self.pool.clear()

    def stats(self, now_s: float | None = None) -> Stats:
        scheduler, now_s = self._scheduler, self.clock_s if now_s is None else now_s
        return Stats(
            running=self.running,
            waiting=self.waiting,
            kv_usage=self.pool.usage,
            cache_queries=scheduler.cache_queries,
            cache_hits=scheduler.cache_hits,
            preemptions=scheduler.preemptions,
            pull_queries=scheduler.pull_queries,
            pull_hits=scheduler.pull_hits,
            held_blocks=sum(len(request.blocks) for request in self._held.values()),
            transferring=self.transferring,
            blocked_s=self.blocked_s,
            tiers=self._tiers.stats(now_s, idle=self._is_idle) if self._tiers is not None else None,
            arithmetic_s=self._clock.more_s if self._clock is not None else 0.0,
        )

    def next_event_s(self) -> float | None:
        """Return when the step in progress ends, or when the next one can start; None if there is nothing to do."""
        if self._plan is not None:
            return self._plan.end_s
        run = self.coming_run()
        return self.clock_s + run.first_s if run is not None else self.next_start_s()

    def step(self) -> StepResult | None:
        """Run the next step; None if there is nothing to do."""
        return self.complete() if self.begin(math.inf) is not None else None

    def advance(self, until_s: float) -> list[StepResult]:
        """Return all steps that end by the given time. Runs of decode steps are computed in closed form."""
        results: list[StepResult] = []
        while True:
            run = self.coming_run()
            if run is not None:
                steps = steps_within(until_s - self.clock_s, run.first_s, run.growth_s)
                if steps < 1:
                    return results
                results.append(self.run(run, self.count_equal(run, min(run.steps, steps))))
            elif (end_s := self.begin(until_s)) is not None and end_s <= until_s:
                results.append(self.complete())
            else:
                return results

    def next_turn_s(self) -> float | None:
        """Return when a step ends or can start, or a run of decode steps ends, unless a request is added before
        that."""
        if self._plan is not None:
            return self._plan.end_s
        run = self.coming_run()
        if run is None:
            return self.next_start_s()
        self._equal_steps = self._equal_steps or self.count_equal(run, run.steps)
        return self.clock_s + run_s(self._equal_steps, run.first_s, run.growth_s)

    def turn(self, now_s: float) -> StepResult | None:
        """Advance to `now_s`. Call this at `next_turn_s`, or at once if that has passed. Return the steps that end;
        None if a step starts."""
        if self._plan is not None:
            return self.complete()
        run = self.coming_run()
        if run is not None:
            return self.run(run, self._equal_steps or self.count_equal(run, run.steps))
        self.clock_s = max(self.clock_s, now_s)  # the engine may have been blocked since its last step
        self.begin(self.clock_s)
        return None

    def usage_at(self, now_s: float) -> float:
        """Return the share of the blocks in use, 0–1, at a moment before `next_turn_s`."""
        run = self._decode_run
        if self._tiers is not None and self._is_idle:
            self._tiers.settle(now_s)
        if self._plan is not None or run is None:
            return self.pool.usage
        steps = min(steps_within(now_s - self.clock_s, run.first_s, run.growth_s), run.steps)
        return self.pool.usage + self._scheduler.shortage_of_running(steps) / self.pool.total

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def transferring(self) -> int:
        return len(self._held) + len(self._scheduler.pulling)

    @property
    def waiting(self) -> int:
        scheduler = self._scheduler
        return len(scheduler.waiting) + len(scheduler.pulling) + len(self._arriving) + len(self._awaiting)

    @property
    def in_step(self) -> bool:
        return self._plan is not None

    @property
    def _is_idle(self) -> bool:
        return self._plan is None and not self._scheduler.running

    def next_start_s(self) -> float | None:
        if self._scheduler.running or (self._scheduler.waiting and not self._scheduler.blocked):
            return self.clock_s
        starts = [self._arriving[0].ready_s] if self._arriving else []
        if self._tiers is not None and self._scheduler.waiting:  # held back until blocks are written
            change_s = self._tiers.idle_change_at_s()
            starts += [change_s] if change_s is not None else []
        return max(self.clock_s, min(starts)) if starts else None

    def begin(self, until_s: float) -> float | None:
        """Start a step if possible. Return when the step in progress ends; None if there is none."""
        if self._plan is None:
            plan = self.plan(until_s)
            return self.start(plan, self.law.plan_s(plan)) if plan is not None else None
        return self._plan.end_s

    def plan(self, until_s: float) -> StepPlan | None:
        """Plan the next step, if it can begin by then; the caller starts it immediately."""
        while (start_s := self.next_start_s()) is not None and start_s <= until_s:
            planned_s = self._planned_s if self._scheduler.running else start_s
            while self._arriving and self._arriving[0].ready_s <= planned_s:
                self._enqueue(self._arriving.popleft())
            plan = self._planned(start_s)
            if plan.tokens:
                return plan
            if self._tiers is None or not self._scheduler.waiting:
                return None  # every admissible request waits for its KV
        return None

    def hold_until(self, end_s: float) -> None:
        """Extend the step in progress until the given time; if there is none, delay the next step."""
        if self._plan is not None:
            self._plan.end_s = end_s
        else:
            self.clock_s = max(self.clock_s, end_s)

    def _planned(self, start_s: float) -> StepPlan:
        if self._tiers is not None:
            self._tiers.settle(start_s)
        plan = self._scheduler.plan(start_s)
        self._pulls += plan.pulls
        self._count_blocked(plan)
        for request in plan.failed:
            del self._requests[request.id]
        self._failed += plan.failed
        return plan

    def _count_blocked(self, plan: StepPlan) -> None:
        """Count the time in which nothing is computed although requests wait for their KV, a slot or blocks."""
        if not plan.tokens:
            if self._scheduler.waiting and self._blocked_since is None:
                self._blocked_since = plan.start_s
        elif self._blocked_since is not None:
            self.blocked_s += plan.start_s - self._blocked_since
            self._blocked_since = None

    def start(self, plan: StepPlan, law_s: float) -> float:
        """Start the step and return when it ends. `law_s` is its duration by the law, at full clock."""
        if self._clock is not None and plan.prefill:
            law_s = self._clock.step_s(plan.start_s, law_s, self.law.computing_s(plan.tokens, plan.pairs))
        plan.law_s = step_s = law_s
        if self._tiers is not None:
            step_s = self._tiers.lengthen(plan.loads, plan.start_s, plan.law_s)
        plan.end_s = plan.start_s + step_s
        self._plan = plan
        return plan.end_s

    def _enqueue(self, request: EngineRequest) -> None:
        """Queue a request, in order of arrival. A request that already has its blocks, because its KV was pulled, is
        first."""
        waiting = self._scheduler.waiting
        (waiting.appendleft if request.blocks else waiting.append)(request)

    def complete(self) -> StepResult:
        plan, self._plan = self._plan, None
        assert plan is not None  # noqa: S101 - narrows the type: both callers began a step
        self._decode_run, self._equal_steps = None, 0
        self._completed(plan.start_s, plan.end_s)
        result = StepResult(plan.start_s, plan.end_s, 1, plan.tokens, emitted=[])
        result.pairs, result.context, result.decodes = plan.pairs, float(plan.context), len(plan.decode)
        if any(tokens > 1 for _, tokens in plan.prefill):
            self._interrupt()
        if self._tiers is not None:
            self._tiers.ended(plan.loads, plan.law_s, self.clock_s, prefills=bool(plan.prefill))
        decoding = [one for one in plan.decode if one.finished_s != one.finished_s]  # not aborted while the step ran
        for request in decoding:
            if request.first_token_s != request.first_token_s:  # NaN: the first token came with the KV
                request.first_token_s = self.clock_s
                result.first.append(request)
        self._emit_decodes(decoding, result, self.clock_s)
        for request, tokens in plan.prefill:
            if not request.is_over:
                self._prefilled(request, tokens, result)
        return result

    def _completed(self, start_s: float, end_s: float) -> None:
        """End a step. An engine that plans ahead had planned the next step when this one started."""
        self.clock_s = end_s
        self._planned_s = start_s if self.limits.async_scheduling else end_s

    def _interrupt(self) -> None:
        """Count an interruption of every decoding request by the prefill in this step."""
        for request in self._scheduler.running:
            generated = request.generated
            if generated and request.prompt_tokens + generated - request.computed == 1:
                request.interruptions += 1

    def _prefilled(self, request: EngineRequest, tokens: int, result: StepResult) -> None:
        if request.computed + tokens < request.tokens:
            request.computed += tokens
            return
        if self._tiers is not None:
            self._tiers.write(request, self.clock_s)
        if request.generated:
            result.resumed.append((request, self.clock_s - request.last_token_s))
        else:
            request.first_token_s = self.clock_s
            result.first.append(request)
        self._emit(request, tokens, result)

    def _emit(self, request: EngineRequest, computed: int, result: StepResult) -> None:
        """Emit the token that follows a prompt."""
        if request.generated == 1:
            request.second_token_s = self.clock_s
        request.computed += computed
        request.generated += 1
        request.last_token_s = self.clock_s
        result.emitted.append(request)
        if request.generated >= request.output_tokens:
            self._finish(request, result)

    def _emit_decodes(self, requests: list[EngineRequest], result: StepResult, first_end_s: float) -> None:
        """Emit a token per step for each decoding request. `first_end_s` is the end of the first step."""
        steps, now_s = result.steps, self.clock_s
        result.emitted += requests
        for request in requests:  # written out, because it is the hottest loop
            generated = request.generated
            if generated == 1:
                request.second_token_s = first_end_s
            request.computed += steps
            request.generated = generated = generated + steps
            request.last_token_s = now_s
            if generated >= request.output_tokens:
                self._finish(request, result)

    def _finish(self, request: EngineRequest, result: StepResult) -> None:
        request.finished_s = self.clock_s
        result.finished.append(request)
        del self._requests[request.id]
        if self._tiers is not None:
            self._tiers.write(request, self.clock_s)
        if request.held:
            self._held[request.id] = request
            self._scheduler.retire(request)
        else:
            self._scheduler.release(request)

    def coming_run(self) -> DecodeRun | None:
        """Return the coming decode steps, if every running request is decoding and none can join now."""
        if self._plan is not None or (self._arriving and self._arriving[0].ready_s <= self._planned_s):
            return None
        if self._decode_run is None:
            self._decode_run = self._new_decode_run()
        return self._decode_run

    def _new_decode_run(self) -> DecodeRun | None:
        scheduler = self._scheduler
        running, batch = scheduler.running, len(scheduler.running)
        if not 0 < batch <= self.limits.max_num_batched_tokens or (scheduler.waiting and not scheduler.blocked):
            return None
        context, steps = 0, sys.maxsize
        for request in running:  # written out, because it is the hottest loop
            generated = request.generated
            tokens = request.prompt_tokens + generated
            if not generated or tokens - request.computed != 1:
                return None
            context += tokens
            if request.output_tokens - generated < steps:
                steps = request.output_tokens - generated
        if not self._has_capacity(1):
            return None
        first_s, growth_s = self.law.step_s(batch, 0.0, context, batch), self.law.kv_s_per_token * batch
        return DecodeRun(steps, first_s, growth_s, batch, context)

    def count_equal(self, run: DecodeRun, steps: int) -> int:
        """Return the number of the next `steps` that run before a request joins or is preempted."""
        if steps > 1 and self._arriving:  # a request that becomes ready during a step joins after it
            wait_s = self._arriving[0].ready_s - self.clock_s
            later = self.limits.async_scheduling and wait_s > 0  # or after the step that is already planned by then
            steps = min(steps, 1 + later + steps_within(wait_s, run.first_s, run.growth_s))
        if steps > 1 and self._tiers is not None and self._scheduler.waiting:
            change_s = self._tiers.change_s(idle=False)
            if change_s is not None:
                steps = min(steps, 1 + steps_within(change_s, run.first_s, run.growth_s))
        while steps > 1 and not self._has_capacity(steps):
            steps //= 2
        return steps

    def run(self, run: DecodeRun, steps: int, pace: DecodeRun | None = None) -> StepResult:
        """Complete `steps` decode steps in closed form. `pace` is the run of the slowest engine that steps together
        with this one."""
        pace = pace or run
        start_s = self.clock_s
        last_s = start_s + run_s(steps - 1, pace.first_s, pace.growth_s)
        self._completed(last_s, start_s + run_s(steps, pace.first_s, pace.growth_s))
        result = StepResult(start_s, self.clock_s, steps, self.running, emitted=[])
        result.context, result.decodes = run.context + run.batch * (steps - 1) / 2, run.batch
        self._scheduler.grow_running(steps)  # all requests grow before any ends and frees blocks
        joins = self._tiers is not None and self._tiers.ended((), result.duration_s, self.clock_s, prefills=False)
        if joins:  # blocks were written, so requests that wait for blocks are tried again
            self._scheduler.blocked = False
        self._emit_decodes(list(self._scheduler.running), result, start_s + pace.first_s)
        self._equal_steps = 0
        self._decode_run = None if joins or result.finished or not self._has_capacity(1) else run.after(steps)
        return result

    def _has_capacity(self, steps: int) -> bool:
        """Return whether every running request can continue for the given number of steps without preemption, and
        without evictions for which a step waits.
        """
        scheduler, pool = self._scheduler, self.pool
        free = pool.free if pool.evicting is None else pool.blank
        if len(scheduler.running) * (steps // self.limits.block_size + 1) <= free:
            return True
        return scheduler.shortage_of_running(steps) <= free
