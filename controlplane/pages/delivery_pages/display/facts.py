"""A delivery at one moment, as plain values. All content of the pages is a pure function of them."""

from dataclasses import dataclass

from controlplane.traffic.deliveries.plan.types import Plan, Step
from controlplane.traffic.deliveries.results import DeliveryStepResult
from controlplane.traffic.deliveries.states import STILL, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    candidate: str  # such as v44
    base: str  # such as v43
    live: str = ""  # version that is live now, whatever the outcome of the delivery, for example v45
    plan: Plan
    state: State
    step: int = 0  # index of the current step
    share: float = 0.0  # share of the requests that the candidate serves now, 0–1
    shadow: float = 0.0  # share of the requests decided in shadow, 0–1
    clock_s: float = 0.0  # age of the step; during the bake, age of the state
    now: float = 0.0  # Unix seconds
    why: str = ""  # sentence about the last transition
    what: str = ""  # last transition
    by: str = ""  # actor of the last transition
    undecided: tuple[str, ...] = ()  # required comparisons that are not fine yet, such as "heavy TTFT"
    unjudged_s: float | None = None  # time without a look, if it counts as a silence of the judge
    unwatched_s: float | None = None  # the same, if routers have given up the split
    holds: tuple[str, ...] = ()
    approvals_missing: int = 0
    freeze_ends: str = ""  # end of a freeze that prevents it from advancing: 2026-08-01 16:00 (Europe/Berlin)
    block: int = 0  # index of a switchback's current block; `blocks` once all are over
    blocks: int = 0  # number of blocks
    results: tuple[DeliveryStepResult, ...] = ()  # results of the ended steps
    ends_at: float | None = None  # Unix seconds when the state ends by itself: a proposal expires, a pause aborts

    @property
    def stands_still(self) -> bool:
        return self.state in STILL or self.unwatched_s is not None

    @property
    def current(self) -> Step:
        return self.plan.steps[min(self.step, len(self.plan.steps) - 1)]

    @property
    def following(self) -> Step | None:
        return self.plan.steps[self.step + 1] if self.step + 1 < len(self.plan.steps) else None
