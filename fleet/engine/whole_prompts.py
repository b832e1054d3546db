"""Batching without chunked prefill: a prompt that exceeds the rest of a step waits for the next one."""

from fleet.engine.blocks import BlockPool
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits, Scheduler, StepPlan
from fleet.engine.tiers.engine_tiers import EngineTiers


class WholePrompts(Scheduler):
    """Schedules whole prompts. With several ranks, a prompt goes to the one with the most budget left; a prompt longer
    than a rank's step runs when that rank has nothing else."""

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
