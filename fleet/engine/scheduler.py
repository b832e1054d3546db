"""Continuous batching as vLLM V1 does it: the running requests first, in order of admission, then admission first come
first served, all under one token budget per step; prompts are cut into chunks that fit what is left of it.

When blocks run out, the request admitted last gives all of its back and later computes them again.
"""

from collections import deque
from dataclasses import dataclass, field

from fleet.engine.blocks import BlockPool
from fleet.engine.law import chunk_pairs
from fleet.engine.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Limits:
    block_size: int = 16  # tokens
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192


@dataclass(slots=True)
class Plan:
    """What one step computes."""

    start_s: float
    prefill: list[tuple[EngineRequest, int]] = field(default_factory=list)  # with the tokens of the chunk
    decode: list[EngineRequest] = field(default_factory=list)
    pulls: list[EngineRequest] = field(default_factory=list)  # admitted, but their KV has to come from elsewhere
    preempted: int = 0
    pairs: float = 0.0  # see Law.step_s
    context: int = 0  # see Law.step_s
    tokens: int = 0
    end_s: float = 0.0

    def add(self, request: EngineRequest, tokens: int) -> None:
        self.tokens += tokens
        if request.is_decoding:
            self.decode.append(request)
            self.context += request.computed + 1
        else:
            self.prefill.append((request, tokens))
            self.pairs += chunk_pairs(tokens, request.computed)


class Scheduler:
    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self.pool = pool
        self.limits = limits
        self._size = limits.block_size
        self.running: list[EngineRequest] = []
        self.waiting: deque[EngineRequest] = deque()
        self.pulling: list[EngineRequest] = []  # hold their blocks and wait for the KV that goes into them
        self.blocked = False  # the first one waiting stays so until a running one ends
        self.cache_queries = 0  # prompt tokens looked up
        self.cache_hits = 0  # of them, found
        self.pull_queries = 0  # prompt tokens that another engine or a store was asked for
        self.pull_hits = 0  # of them, those that came
        self.preemptions = 0

    def plan(self, now_s: float) -> Plan:
        """The step that starts now; takes the blocks it needs."""
        plan = Plan(now_s)
        budget = self._plan_running(plan)
        if not plan.preempted:
            self._admit(plan, budget)
        return plan

    def release(self, request: EngineRequest) -> None:
        """Forget a request that is over, wherever it is."""
        self.retire(request)
        self.free(request)

    def retire(self, request: EngineRequest) -> None:
        """As `release`, but its blocks stay in use until `free`."""
        for queue in (self.running, self.pulling, self.waiting):
            if request in queue:
                queue.remove(request)
                break
        self.blocked = False

    def free(self, request: EngineRequest) -> None:
        self._give_back(request)

    def pulled(self, request: EngineRequest, tokens: int) -> None:
        """What it waited for has come, or not: `tokens` of its prompt are in its blocks now. It may be admitted."""
        self.pulling.remove(request)
        computed = min(tokens, request.prompt_tokens - 1)  # the first new token comes from the last one's logits
        if computed > request.computed:
            request.pulled_tokens = computed - request.computed
            request.computed = computed
            self.grow(request, 0)
        self.pull_hits += request.pulled_tokens

    def grow(self, request: EngineRequest, tokens: int) -> None:
        """Take the blocks for `tokens` more tokens; those that get full can be hit from now on, as in vLLM, which
        stores them when the step is scheduled."""
        size, end = self._size, request.computed + tokens
        if end > len(request.blocks) * size:
            request.blocks += self.pool.allocate(-(-end // size) - len(request.blocks))
        full = end // size
        if full > request.stored and (full := min(full, len(request.chain))) > request.stored:
            self.pool.store(request.blocks, request.chain, request.stored, full, request.content)
            request.stored = full

    def shortage(self, request: EngineRequest, tokens: int) -> int:
        """Blocks to take before `tokens` more tokens have a place."""
        short = -(-(request.computed + tokens) // self._size) - len(request.blocks)
        return short if short > 0 else 0

    def _plan_running(self, plan: Plan) -> int:
        budget = self.limits.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.tokens - request.computed, budget)
            has_place = request.computed + tokens <= len(request.blocks) * self._size
            if not has_place and not self._make_room(request, tokens, plan):
                break
            self.grow(request, tokens)
            plan.add(request, tokens)
            budget -= tokens
            index += 1
        return budget

    def _make_room(self, request: EngineRequest, tokens: int, plan: Plan) -> bool:
        short = self.shortage(request, tokens)
        while short > self.pool.free:
            victim = self.running.pop()
            self._preempt(victim)
            plan.preempted += 1
            if victim is request:
                return False
        return True

    def _preempt(self, request: EngineRequest) -> None:
        self._give_back(request)
        request.computed = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _give_back(self, request: EngineRequest) -> None:
        self.blocked = False
        self.pool.release(request.blocks)
        request.blocks = []
        request.stored = 0

    def _admit(self, plan: Plan, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            if not request.blocks and not self._reserve(request):
                self.blocked = True
                return
            self.waiting.popleft()
            if self._pulls(request):
                plan.pulls.append(request)
                continue
            self._start(request, plan.start_s)
            tokens = min(request.tokens - request.computed, budget)
            self.grow(request, tokens)
            plan.add(request, tokens)
            budget -= tokens
        self.blocked = len(self.running) >= self.limits.max_num_seqs

    def _reserve(self, request: EngineRequest) -> bool:
        """Take what the cache holds of it; False when the rest would not fit: the whole prompt, not only a chunk."""
        size = self.limits.block_size
        # At least one token is computed: the first new token comes from its logits.
        hits = self.pool.hit(request.chain, (request.tokens - 1) // size)
        needed = -(-request.tokens // size) - len(hits) + self.pool.idle_among(hits)
        if needed > self.pool.free:
            return False
        self.pool.take(hits)
        request.blocks = hits
        request.stored = len(hits)
        request.computed = len(hits) * size
        return True

    def _pulls(self, request: EngineRequest) -> bool:
        """Whether it has to wait for KV from elsewhere first; then it takes all of its blocks and is asked for once."""
        wanted = min(request.pull_tokens, request.prompt_tokens) - request.computed
        request.pull_tokens = 0
        if wanted <= 0 or request.preemptions:
            return False
        short = -(-request.tokens // self.limits.block_size) - len(request.blocks)
        request.blocks = request.blocks + self.pool.allocate(max(short, 0))
        self.pull_queries += wanted
        self.pulling.append(request)
        return True

    def _start(self, request: EngineRequest, now_s: float) -> None:
        self.running.append(request)
        if not request.preemptions:  # a repeated prefill counts neither as a query nor as a hit
            request.scheduled_s = now_s
            request.cached_tokens = request.computed
            self.cache_queries += request.prompt_tokens
            self.cache_hits += request.computed - request.pulled_tokens
