"""One inference engine in virtual time: requests in, steps out. No clock and no I/O: the sim kind drives it by the wall
clock, the twin by its event queue.

    engine.add_request(request, now)      a request arrives
    engine.next_event_s()                 when something happens next
    engine.advance(until)                 the steps that end by then

or, for whoever keeps many engines in one queue of events and so calls each as rarely as can be:

    engine.next_turn_s()                  when it is to be called
    engine.turn(now)                      what ends then; and the next step begins
"""

import math
import sys
from collections import deque
from dataclasses import dataclass, field

from fleet.engine.blocks import BlockPool
from fleet.engine.cruise import Cruise, run_s, steps_within
from fleet.engine.law import API_S, Law
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits, Plan, Scheduler


class RequestTooLong(ValueError):
    """Prompt and answer together never fit into the KV cache."""


@dataclass(slots=True)
class StepResult:
    """One step, or several equal decode steps in a row taken together."""

    start_s: float
    end_s: float
    steps: int
    scheduled: int  # tokens per step
    emitted: list[EngineRequest]  # each got one token in every step
    first: list[EngineRequest] = field(default_factory=list)  # of them, those whose first token this is
    finished: list[EngineRequest] = field(default_factory=list)
    resumed: list[tuple[EngineRequest, float]] = field(default_factory=list)  # with the seconds since their last token

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def tokens(self) -> dict[str, int]:
        """New tokens per request."""
        return {request.id: self.steps for request in self.emitted}


@dataclass(frozen=True, slots=True)
class Stats:
    running: int
    waiting: int
    kv_usage: float  # 0–1 share of the blocks
    cache_queries: int  # tokens
    cache_hits: int  # tokens
    preemptions: int
    pull_queries: int = 0  # prompt tokens asked for elsewhere
    pull_hits: int = 0  # of them, those that came
    held_blocks: int = 0  # of finished requests, for others to pull


class Engine:
    def __init__(
        self,
        law: Law,
        blocks: int,
        limits: Limits | None = None,
        *,
        api_s: float = API_S,
        record_events: bool = False,
    ) -> None:
        self.law = law
        self.limits = limits or Limits()
        self.pool = BlockPool(blocks, record_events=record_events)
        self.clock_s = 0.0  # the end of the last step
        self._api_s = api_s
        self._scheduler = Scheduler(self.pool, self.limits)
        self._arriving: deque[EngineRequest] = deque()  # on their way through the API, in order
        self._plan: Plan | None = None  # the step in progress
        self._cruise: Cruise | None = None  # what the next steps have in common; None: look again
        self._leap = 0  # so many of them are alike indeed; 0: look again
        self._requests: dict[str, EngineRequest] = {}
        self._held: dict[str, EngineRequest] = {}  # finished, their blocks still in use
        self._pulls: list[EngineRequest] = []  # to be taken by `take_pulls`

    def add_request(self, request: EngineRequest, now_s: float) -> None:
        """Arrivals come in order of time; one that is late queues behind the others. Raises RequestTooLong."""
        total = request.prompt_tokens + request.output_tokens
        room = self.pool.total * self.limits.block_size
        if total > room:
            raise RequestTooLong(f"{request.id}: {total} tokens, the KV cache holds {room}")
        request.arrived_s = now_s
        request.ready_s = max(now_s + self._api_s, self._arriving[-1].ready_s if self._arriving else 0.0)
        self._arriving.append(request)
        self._requests[request.id] = request
        self._leap = 0

    def abort(self, request_id: str) -> EngineRequest | None:
        """Take a request out and free its blocks; None when it is not here (any more)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        request.finished_s = self.clock_s
        self._cruise, self._leap = None, 0
        if request in self._arriving:
            self._arriving.remove(request)
        else:
            self._scheduler.release(request)
        return request

    def take_pulls(self) -> list[EngineRequest]:
        """Requests that since the last call began to wait for KV from elsewhere; each is to be `pulled`, or aborted."""
        pulls, self._pulls = self._pulls, []
        return pulls

    def pulled(self, request: EngineRequest, tokens: int, now_s: float) -> None:
        """KV of so many tokens of its prompt has come: it goes on with the next step; 0 computes all of it here."""
        if request.is_over:
            return
        self._scheduler.pulled(request, tokens)
        request.ready_s = min(now_s, self._arriving[0].ready_s) if self._arriving else now_s
        self._arriving.appendleft(request)
        self._leap = 0

    def held(self, request_id: str) -> EngineRequest | None:
        """A finished request whose blocks are kept for others."""
        return self._held.get(request_id)

    def release_held(self, request_id: str) -> bool:
        request = self._held.pop(request_id, None)
        if request is None:
            return False
        self._scheduler.free(request)
        return True

    def reset_cache(self) -> bool:
        return self.pool.clear()

    def stats(self) -> Stats:
        scheduler = self._scheduler
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
        )

    def next_event_s(self) -> float | None:
        """When the step in progress ends, or else when the next one can start; None when there is nothing to do."""
        if self._plan is not None:
            return self._plan.end_s
        cruise = self._find_cruise()
        return self.clock_s + cruise.first_s if cruise is not None else self._next_start_s()

    def step(self) -> StepResult | None:
        """The next step, whenever it ends; None when there is nothing to do."""
        return self._complete() if self._begin(math.inf) else None

    def advance(self, until_s: float) -> list[StepResult]:
        """All steps that end by then. Runs of equal decode steps are computed in one go."""
        results: list[StepResult] = []
        while True:
            cruise = self._find_cruise()
            if cruise is not None:
                steps = steps_within(until_s - self.clock_s, cruise.first_s, cruise.growth_s)
                if steps < 1:
                    return results
                results.append(self._run(cruise, self._alike(cruise, min(cruise.steps, steps))))
            elif self._begin(until_s) and self._plan is not None and self._plan.end_s <= until_s:
                results.append(self._complete())
            else:
                return results

    def next_turn_s(self) -> float | None:
        """When a step ends or can start, or a run of equal decode steps is over, if nothing is added before then."""
        if self._plan is not None:
            return self._plan.end_s
        cruise = self._find_cruise()
        if cruise is None:
            return self._next_start_s()
        self._leap = self._leap or self._alike(cruise, cruise.steps)
        return self.clock_s + run_s(self._leap, cruise.first_s, cruise.growth_s)

    def turn(self, now_s: float) -> StepResult | None:
        """To be called at `next_turn_s`, at once where that is past: what ends then; None when a step starts."""
        if self._plan is not None:
            return self._complete()
        cruise = self._find_cruise()
        if cruise is not None:
            return self._run(cruise, self._leap or self._alike(cruise, cruise.steps))
        self.clock_s = max(self.clock_s, now_s)  # what held it up may have gone away since its last step
        self._begin(math.inf)
        return None

    def usage_at(self, now_s: float) -> float:
        """Share of the blocks in use, 0–1, at a moment before `next_turn_s`."""
        cruise, running = self._cruise, self._scheduler.running
        if self._plan is not None or cruise is None:
            return self.pool.usage
        steps = min(steps_within(now_s - self.clock_s, cruise.first_s, cruise.growth_s), cruise.steps)
        return self.pool.usage + sum(self._scheduler.shortage(one, steps) for one in running) / self.pool.total

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._scheduler.pulling) + len(self._arriving)

    def _next_start_s(self) -> float | None:
        if self._scheduler.running or (self._scheduler.waiting and not self._scheduler.blocked):
            return self.clock_s
        if self._arriving:
            return max(self.clock_s, self._arriving[0].ready_s)
        return None

    def _begin(self, until_s: float) -> bool:
        """Make sure that a step is in progress, if one can start by then."""
        if self._plan is not None:
            return True
        start_s = self._next_start_s()
        if start_s is None or start_s > until_s:
            return False
        while self._arriving and self._arriving[0].ready_s <= start_s:
            self._enqueue(self._arriving.popleft())
        plan = self._scheduler.plan(start_s)
        self._pulls += plan.pulls
        if not plan.tokens:  # all that could be admitted waits for its KV
            return False
        plan.end_s = start_s + self.law.step_s(plan.tokens, plan.pairs, plan.context, len(plan.decode))
        self._plan = plan
        return True

    def _enqueue(self, request: EngineRequest) -> None:
        """First come, first served; but who has its blocks already, since its KV was pulled, goes first."""
        waiting = self._scheduler.waiting
        (waiting.appendleft if request.blocks else waiting.append)(request)

    def _complete(self) -> StepResult:
        plan, self._plan = self._plan, None
        assert plan is not None  # noqa: S101 - narrows the type; both callers began a step
        self._cruise, self._leap = None, 0
        self.clock_s = plan.end_s
        result = StepResult(plan.start_s, plan.end_s, 1, plan.tokens, emitted=[])
        for request in plan.decode:
            if not request.is_over:  # aborted while the step ran
                self._emit(request, 1, result)
        for request, tokens in plan.prefill:
            if not request.is_over:
                self._prefilled(request, tokens, result)
        return result

    def _prefilled(self, request: EngineRequest, tokens: int, result: StepResult) -> None:
        if request.computed + tokens < request.tokens:
            request.computed += tokens
            return
        if request.generated:
            result.resumed.append((request, self.clock_s - request.last_token_s))
        else:
            request.first_token_s = self.clock_s
            result.first.append(request)
        self._emit(request, tokens, result)

    def _emit(self, request: EngineRequest, computed: int, result: StepResult) -> None:
        request.computed += computed
        request.generated += result.steps
        request.last_token_s = self.clock_s
        result.emitted.append(request)
        if request.generated >= request.output_tokens:
            request.finished_s = self.clock_s
            result.finished.append(request)
            del self._requests[request.id]
            self._finish(request)

    def _finish(self, request: EngineRequest) -> None:
        if request.held:
            self._held[request.id] = request
            self._scheduler.retire(request)
        else:
            self._scheduler.release(request)

    def _find_cruise(self) -> Cruise | None:
        """Whether the next steps are alike: all that run are decoding, and nobody can join them now."""
        if self._plan is not None or (self._arriving and self._arriving[0].ready_s <= self.clock_s):
            return None
        if self._cruise is None:
            self._cruise = self._new_cruise()
        return self._cruise

    def _new_cruise(self) -> Cruise | None:
        scheduler = self._scheduler
        running, batch = scheduler.running, len(scheduler.running)
        if not 0 < batch <= self.limits.max_num_batched_tokens or (scheduler.waiting and not scheduler.blocked):
            return None
        context, steps = 0, sys.maxsize
        for request in running:  # written out: it is looked at more often than anything else
            generated = request.generated
            tokens = request.prompt_tokens + generated
            if not generated or tokens - request.computed != 1:
                return None
            context += tokens
            if request.output_tokens - generated < steps:
                steps = request.output_tokens - generated
        if not self._has_room(1):
            return None
        return Cruise(steps, self.law.step_s(batch, 0.0, context, batch), self.law.kv_s_per_token * batch)

    def _alike(self, cruise: Cruise, steps: int) -> int:
        """How many of the next `steps` are alike indeed: until somebody joins, or has to give blocks back."""
        if steps > 1 and self._arriving:  # who is ready during a step joins after it
            wait_s = self._arriving[0].ready_s - self.clock_s
            steps = min(steps, 1 + steps_within(wait_s, cruise.first_s, cruise.growth_s))
        while steps > 1 and not self._has_room(steps):
            steps //= 2
        return steps

    def _run(self, cruise: Cruise, steps: int) -> StepResult:
        """So many steps alike, in closed form."""
        start_s, self.clock_s = self.clock_s, self.clock_s + run_s(steps, cruise.first_s, cruise.growth_s)
        running = list(self._scheduler.running)
        result = StepResult(start_s, self.clock_s, steps, len(running), emitted=[])
        for request in running:  # all of them before any is over and gives blocks back: that comes last
            self._scheduler.grow(request, steps)
        for request in running:
            self._emit(request, steps, result)
        self._leap = 0
        self._cruise = None if result.finished or not self._has_room(1) else cruise.after(steps)
        return result

    def _has_room(self, steps: int) -> bool:
        """Whether all that run can go on for that many steps without anybody's blocks being taken."""
        scheduler, free = self._scheduler, self.pool.free
        if len(scheduler.running) * (steps // self.limits.block_size + 1) <= free:
            return True
        return sum(scheduler.shortage(request, steps) for request in scheduler.running) <= free
