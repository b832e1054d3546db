"""The question of a plan, defined once for the API, the form and the documentation."""

from collections.abc import Callable, Collection
from typing import Annotated

from pydantic import AfterValidator, Field

from controlplane.common.input_errors import different
from controlplane.evidence.experiments.start.body import Seed, Slo, Strict
from controlplane.evidence.plan.question import MOST_GB, MOST_GPUS, PLANNED, MeasuredEngines, PlanQuestion
from controlplane.evidence.plan.question import Slo as Limits
from fleet.engine.profiles import DEFAULT_GPU, DEFAULT_MODEL, GPUS, model_names
from fleet.systems.prices import Prices
from router.policy.strategies import STRATEGIES

MOST_REQUESTS = 12_000
WEIRS = "priced"


def _one_of(known: Callable[[], Collection[str]]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known():
            raise ValueError(f"allowed are {', '.join(known())}")
        return name

    return AfterValidator(check)


Model = Annotated[str, _one_of(model_names)]
Gpu = Annotated[str, _one_of(lambda: GPUS)]
Strategy = Annotated[str, _one_of(lambda: STRATEGIES)]
Dollars = Annotated[float, Field(gt=0, lt=1e6)]
Gigabytes = Annotated[float, Field(ge=0, le=MOST_GB)]


class PlanIn(Strict):
    """A load, its SLO, and the fleets to choose from."""

    trace: str = Field(min_length=1, max_length=100, examples=["agentic-demo"])
    model: Model = Field(DEFAULT_MODEL, description="A profile of the catalogue")
    gpus: dict[Gpu, Dollars] = Field(
        {DEFAULT_GPU: Prices().gpu_hour}, min_length=1, max_length=8, description="GPU → dollars an hour"
    )
    slo: Slo = Field(min_length=1, examples=[{"all": {"ttft_ms": 2000, "tpot_ms": 40}}])
    share: float = Field(0.9, gt=0, le=1, description="Of the requests of each class within its limits")
    policies: Annotated[list[Strategy], AfterValidator(different)] = Field([WEIRS], min_length=1, max_length=8)
    host_gb: Annotated[list[Gigabytes], AfterValidator(different)] = Field(
        [0.0], min_length=1, max_length=8, description="Host memory for KV per instance"
    )
    most_gpus: int = Field(64, ge=1, le=MOST_GPUS)
    requests: int = Field(PLANNED, ge=1, le=MOST_REQUESTS, description="The busiest in a row")
    seed: Seed = 1
    pool: str = Field("", max_length=63, description="Calibrated; its engines take the place of model and layouts")

    @property
    def question(self) -> PlanQuestion:
        return self.question_with()

    def question_with(self, measured: MeasuredEngines | None = None) -> PlanQuestion:
        slo: Limits = {name: limits.model_dump(exclude_none=True) for name, limits in sorted(self.slo.items())}
        return PlanQuestion(
            self.model,
            dict(sorted(self.gpus.items())),
            slo,
            self.share,
            tuple(self.policies),
            self.most_gpus,
            tuple(self.host_gb),
            self.seed,
            measured,
        )
