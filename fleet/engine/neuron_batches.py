"""Other batches than the default: whole prompts; known hits; and as vLLM makes them on Neuron (NxD Inference): prompts
whole and one at a time, no prefix cache.

| role    |            | may start                                          | bound                       |
|---------|------------|----------------------------------------------------|-----------------------------|
| both    | a prompt   | running < B; the decodes pause meanwhile           | running <= B                |
| prefill | a prompt   | none runs and transferring < B                     | running + transferring <= B |
| decode  | a transfer | its prefill is done and running + transferring < B | running + transferring <= B |
| decode  | to decode  | its transfer is done: from the next step on        |                             |

B is `max_num_seqs`. Source: the guide to disaggregated inference on Neuron, "Request Scheduling Rules".
"""

import math

from fleet.engine.blocks import BlockPool
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import VLLM, WHOLE_PROMPTS, Limits, Scheduler, StepPlan
from fleet.engine.tiers.engine_tiers import EngineTiers

KNOWN_HITS = "known_hits"


class KnownHits(Scheduler):
    """Schedules requests with known cached tokens, given in `content`. Each request takes separate blocks, because a
    record does not show which requests share blocks."""

    caches_prefixes = False

    def _reserve(self, request: EngineRequest) -> bool:
        if -(-request.tokens // self._size) > self.pool.free:
            return False
        known = request.content if isinstance(request.content, int) else 0
        request.computed = min(known, request.prompt_tokens - 1)
        return True


class WholePrompts(Scheduler):
    """Schedules whole prompts. With several ranks, a prompt goes to the rank with the most budget left; a prompt
    longer than a rank's step runs when that rank has nothing else."""

    def __init__(self, pool: BlockPool, limits: Limits, tiers: EngineTiers | None = None) -> None:
        super().__init__(pool, limits, tiers)
        self._each = limits.max_num_batched_tokens // limits.ranks
        self._left = [self._each] * limits.ranks  # tokens left in the step, by rank

    def plan(self, now_s: float) -> StepPlan:
        plan = super().plan(now_s)
        self.blocked = self.blocked and not (self.waiting and self._exceeds(self.waiting[0]))
        return plan

    def _plan_running(self, plan: StepPlan) -> int:
        budget = super()._plan_running(plan)
        taken, more = divmod(self.limits.max_num_batched_tokens - budget, len(self._left))
        self._left = [self._each - taken - (rank < more) for rank in range(len(self._left))]
        return budget

    def _has_slot(self, request: EngineRequest | None) -> bool:
        return super()._has_slot(request) and (request is None or not self._exceeds(request))

    def _exceeds(self, request: EngineRequest) -> bool:
        most = max(self._left)
        return most < self._each and request.tokens - request.computed > most

    def _chunk(self, request: EngineRequest, budget: int) -> int:
        tokens = request.tokens - request.computed
        self._left[self._left.index(max(self._left))] -= tokens
        return tokens


class NeuronBatches(Scheduler):
    """Prefills and decodes on one instance: continuous batching in which prompts take precedence over decodes."""

    caches_prefixes = False

    def plan(self, now_s: float) -> StepPlan:
        plan = StepPlan(now_s)
        self._admit(plan, 1)  # for a budget that the first prompt exhausts
        if not plan.prefill:
            self._plan_running(plan)
        return plan

    def _chunk(self, request: EngineRequest, budget: int) -> int:
        return request.tokens - request.computed


class _Disaggregated(Scheduler):
    caches_prefixes = False

    def __init__(self, pool: BlockPool, limits: Limits, tiers: EngineTiers | None = None) -> None:
        super().__init__(pool, limits, tiers)
        self.transferring: set[EngineRequest] = set()  # requests in transfer, each with a slot of the batch

    def _chunk(self, request: EngineRequest, budget: int) -> int:
        return request.tokens - request.computed


class NeuronPrefill(_Disaggregated):
    def retire(self, request: EngineRequest) -> None:
        super().retire(request)
        if request.held:
            self.transferring.add(request)

    def free(self, request: EngineRequest) -> None:
        super().free(request)
        self.transferring.discard(request)

    def _has_slot(self, request: EngineRequest | None) -> bool:
        return not self.running and len(self.transferring) < self.limits.max_num_seqs


class NeuronDecode(_Disaggregated):
    def pulled(self, request: EngineRequest, tokens: int) -> None:
        """Continue a request whose whole prompt arrived as KV, together with its first token."""
        super().pulled(request, tokens)
        self.blocked = False
        if tokens >= request.prompt_tokens and request.output_tokens > 1:
            request.computed = request.prompt_tokens
            request.pulled_tokens += 1
            self.pull_hits += 1
            request.generated = 1

    def retire(self, request: EngineRequest) -> None:
        super().retire(request)
        self.transferring.discard(request)

    def _has_slot(self, request: EngineRequest | None) -> bool:
        if request in self.transferring:
            return True
        return len(self.running) + len(self.transferring) < self.limits.max_num_seqs

    def _pulls(self, request: EngineRequest) -> bool:
        pulls = super()._pulls(request)
        if pulls:
            self.transferring.add(request)
        return pulls

    def _start(self, request: EngineRequest, plan: StepPlan) -> None:
        super()._start(request, plan)
        self.transferring.discard(request)


def next_poll_s(asked_s: float, done_s: float, poll_s: float) -> float:
    """Return when a decoder that has polled every `poll_s` since `asked_s` learns that a prompt has been computed."""
    if poll_s <= 0 or done_s <= asked_s:
        return max(asked_s, done_s)
    polls = math.ceil((done_s - asked_s) / poll_s - 1e-6)  # allowance for rounding in sums of floating-point numbers
    return max(asked_s + polls * poll_s, done_s)


BATCHING: dict[str, type[Scheduler]] = {
    VLLM: Scheduler,
    KNOWN_HITS: KnownHits,
    WHOLE_PROMPTS: WholePrompts,
    "neuron": NeuronBatches,
    "neuron_prefill": NeuronPrefill,
    "neuron_decode": NeuronDecode,
}
BATCHING_OF_ROLE = {"both": "neuron", "prefill": "neuron_prefill", "decode": "neuron_decode"}
