"""Continuous batching as in vLLM V1: first the running requests in order of admission, then new ones in order of
arrival, all under one token budget per step; prompts are split into chunks that fit the remaining budget. If blocks run
out, the request admitted last frees all its blocks and recomputes them later.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from fleet.engine.blocks import BlockPool
from fleet.engine.law import chunk_pairs
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.choice import BlockLoads
from fleet.engine.tiers.engine_tiers import EngineTiers

VLLM = "vllm"
WHOLE_PROMPTS = "whole_prompts"
ASKED = -1  # value of `pull_tokens` after the pull was requested, which happens once


@dataclass(frozen=True, slots=True)
class Limits:
    block_size: int = 16  # tokens per block
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    batching: str = VLLM  # key of fleet.engine.neuron_batches.BATCHING
    async_scheduling: bool = True  # True: a step is planned while the previous one runs
    ranks: int = 1  # GPUs that process separate prompts; a whole prompt must fit into the share of one GPU

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Pickle the constructor's arguments, so that compiled and interpreted classes can read each other's
        pickles."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))


@dataclass(slots=True)
class StepPlan:
    """The work of one step."""

    start_s: float
    prefill: list[tuple[EngineRequest, int]] = field(default_factory=list)  # requests with the tokens of their chunk
    decode: list[EngineRequest] = field(default_factory=list)
    pulls: list[EngineRequest] = field(default_factory=list)  # admitted requests that wait for KV from elsewhere
    loads: list[BlockLoads] = field(default_factory=list)  # loads from tiers below HBM
    # Requests for whose loads there was not enough GPU memory
    failed: list[EngineRequest] = field(default_factory=list)
    preempted: int = 0
    pairs: float = 0.0  # as in Law.step_s
    context: int = 0  # as in Law.step_s
    tokens: int = 0
    law_s: float = 0.0  # duration without loads
    end_s: float = 0.0

    def add(self, request: EngineRequest, tokens: int) -> None:
        self.tokens += tokens
        computed, generated = request.computed, request.generated
        if generated and request.prompt_tokens + generated - computed == 1:  # only the latest token is left
            self.decode.append(request)
            self.context += computed + 1
        else:
            self.prefill.append((request, tokens))
            self.pairs += chunk_pairs(tokens, computed)


class Scheduler:
    caches_prefixes = True

    def __init__(self, pool: BlockPool, limits: Limits, tiers: EngineTiers | None = None) -> None:
        self.pool = pool
        self.limits = limits
        self.tiers = tiers  # tiers below HBM
        self.store: Callable[[EngineRequest], int] | None = None  # prompt tokens held by a shared store
        self._size = limits.block_size
        self.running: list[EngineRequest] = []
        self.waiting: deque[EngineRequest] = deque()
        self.pulling: list[EngineRequest] = []  # requests that have their blocks and wait for KV
        self.blocked = False  # True if the first waiting request cannot start before a running one ends
        self.cache_queries = 0  # prompt tokens looked up
        self.cache_hits = 0  # cached part of the looked-up tokens
        self.pull_queries = 0  # prompt tokens requested from another engine or a store
        self.pull_hits = 0  # arrived part of the requested tokens
        self.preemptions = 0

    def plan(self, now_s: float) -> StepPlan:
        """Plan the step that starts now; allocate the blocks that it needs."""
        plan = StepPlan(now_s)
        budget = self._plan_running(plan)
        if not plan.preempted:
            self._admit(plan, budget)
        return plan

    def release(self, request: EngineRequest) -> None:
        """Remove a request that has ended and free its blocks."""
        self.retire(request)
        self.free(request)

    def retire(self, request: EngineRequest) -> None:
        """Remove a request that has ended; its blocks stay in use until `free`."""
        for queue in (self.running, self.pulling, self.waiting):
            if request in queue:
                queue.remove(request)
                break
        self.blocked = False

    def free(self, request: EngineRequest) -> None:
        self.blocked = False
        self.pool.release(request.blocks)
        request.blocks = []
        request.stored = 0

    def pulled(self, request: EngineRequest, tokens: int) -> None:
        """End a transfer: `tokens` of the prompt are in its blocks, and the request may be admitted."""
        self.pulling.remove(request)
        computed = min(tokens, request.prompt_tokens - 1)  # the last token's logits are needed for the first new token
        if computed > request.computed:
            request.pulled_tokens = computed - request.computed
            request.computed = computed
            self.grow(request, 0)
        self.pull_hits += request.pulled_tokens

    def grow(self, request: EngineRequest, tokens: int) -> None:
        """Allocate the blocks for `tokens` more tokens. Full blocks can be hit at once, because vLLM stores them when
        it schedules the step."""
        size, end = self._size, request.computed + tokens
        if end > len(request.blocks) * size:
            request.blocks += self.pool.allocate(-(-end // size) - len(request.blocks))
        full = end // size if self.caches_prefixes else 0
        if full > request.stored and (full := min(full, len(request.chain))) > request.stored:
            self.pool.store(request.blocks, request.chain, request.stored, full, request.content)
            request.stored = full

    def grow_running(self, tokens: int) -> None:
        """Allocate the blocks for `tokens` more tokens of each running request."""
        size = self._size
        for request in self.running:  # most requests need none
            end = request.computed + tokens
            if end > len(request.blocks) * size or end // size > request.stored:
                self.grow(request, tokens)

    def shortage(self, request: EngineRequest, tokens: int) -> int:
        """Return the number of blocks to allocate for `tokens` more tokens."""
        short = -(-(request.computed + tokens) // self._size) - len(request.blocks)
        return short if short > 0 else 0

    def shortage_of_running(self, tokens: int) -> int:
        """Like `shortage`, over all running requests."""
        size, total = self._size, 0
        for request in self.running:
            short = -(-(request.computed + tokens) // size) - len(request.blocks)
            if short > 0:
                total += short
        return total

    def _plan_running(self, plan: StepPlan) -> int:
        running, size, budget, index = self.running, self._size, self.limits.max_num_batched_tokens, 0
        while index < len(running) and budget > 0:
            request = running[index]
            tokens = request.prompt_tokens + request.generated - request.computed
            tokens = tokens if tokens < budget else budget
            end = request.computed + tokens
            has_blocks = end <= len(request.blocks) * size
            if not has_blocks and not self._make_capacity(request, tokens, plan):
                break
            if not has_blocks or end // size > request.stored:
                self.grow(request, tokens)
            plan.add(request, tokens)
            budget -= tokens
            index += 1
        return budget

    def _make_capacity(self, request: EngineRequest, tokens: int, plan: StepPlan) -> bool:
        short = self.shortage(request, tokens)
        while short > self.pool.free:
            victim = self.running.pop()
            self._preempt(victim)
            plan.preempted += 1
            if victim is request:
                return False
        return True

    def _preempt(self, request: EngineRequest) -> None:
        self.free(request)
        request.computed = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        while self.waiting and budget > 0 and self._has_slot(self.waiting[0]):
            request = self.waiting[0]
            if not request.blocks and not self._enter(request, plan):
                self.blocked = True
                return
            self.waiting.popleft()
            if request.is_over:
                continue
            if self._pulls(request):
                plan.pulls.append(request)
                continue
            self._start(request, plan)
            tokens = self._chunk(request, budget)
            self.grow(request, tokens)
            plan.add(request, tokens)
            budget -= tokens
        self.blocked = not self._has_slot(self.waiting[0] if self.waiting else None)

    def _has_slot(self, request: EngineRequest | None) -> bool:
        """Return whether there is a slot for the first waiting request, or for any request that arrives."""
        return len(self.running) < self.limits.max_num_seqs

    def _chunk(self, request: EngineRequest, budget: int) -> int:
        """Return the number of tokens of an admitted request that are computed in this step."""
        return min(request.tokens - request.computed, budget)

    def _enter(self, request: EngineRequest, plan: StepPlan) -> bool:
        """Take the request's cached blocks and choose what it loads from below HBM. Return False if it has to wait."""
        tiers = self.tiers
        if tiers is None:
            return self._reserve(request)
        if tiers.is_full or not self._reserve(request):
            return False
        if not tiers.load(request):
            self.free(request)
            request.finished_s = plan.start_s
            plan.failed.append(request)
        elif request.load is not None:
            request.computed += sum(request.load.tokens)
        return True

    def _reserve(self, request: EngineRequest) -> bool:
        """Take the request's cached blocks. Return False if the rest of the prompt does not fit as a whole."""
        size = self.limits.block_size
        # At least one token is computed, because the first new token needs its logits.
        hits = self.pool.hit(request.chain, (request.tokens - 1) // size) if self.caches_prefixes else []
        needed = -(-request.tokens // size) - len(hits) + self.pool.idle_among(hits)
        if needed > self.pool.free:
            return False
        self.pool.take(hits)
        request.blocks = hits
        request.stored = len(hits)
        request.computed = len(hits) * size
        return True

    def _pulls(self, request: EngineRequest) -> bool:
        """Return whether the request must first wait for transferred KV, in which case it gets all its blocks. KV is
        requested only once."""
        available = request.pull_tokens
        if self.store is not None and not available:
            available = self.store(request)
        wanted = min(available, request.prompt_tokens) - request.computed
        request.pull_tokens = ASKED
        if wanted <= 0 or request.preemptions:
            return False
        short = -(-request.tokens // self.limits.block_size) - len(request.blocks)
        request.blocks = request.blocks + self.pool.allocate(max(short, 0))
        self.pull_queries += wanted
        self.pulling.append(request)
        return True

    def _start(self, request: EngineRequest, plan: StepPlan) -> None:
        self.running.append(request)
        again = request.preemptions > 0
        load = self.tiers.started(request, again=again) if self.tiers is not None else None
        if load is not None:
            plan.loads.append(load)
            request.load_s = sum(load.io_s)
        if not again:  # a repeated prefill counts neither as a query nor as a hit
            request.scheduled_s = plan.start_s
            request.cached_tokens = request.computed
            if not self.caches_prefixes:
                return
            self.cache_queries += request.prompt_tokens
            loaded = sum(request.tier_tokens)
            self.cache_hits += request.computed - request.pulled_tokens - loaded
            if self.tiers is not None:  # in vLLM, tiers are another cache behind a connector
                self.pull_hits += loaded
                if not request.pulled_tokens:
                    self.pull_queries += request.prompt_tokens - request.computed + loaded
