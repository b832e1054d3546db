"""The request that starts a matrix."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from controlplane.common.input_errors import different
from controlplane.evidence.experiments.start.body import (
    Duration,
    ExpectIn,
    ExperimentIn,
    Factor,
    OneArm,
    Pacing,
    Seeds,
    Slo,
    Strict,
    Text,
)
from router.contract.values.problem import Problem

RUNS_MAX = 500
ARMS_MAX = 16


class MatrixIn(Strict):
    """Traces × loads × arms × seeds in the twin. Each trace at each load is a cell: a separate experiment."""

    name: Text = Field(min_length=1, max_length=120, examples=["Strategies on every trace"])
    question: Text = Field("", max_length=2_000)
    traces: Annotated[list[str], AfterValidator(different)] = Field(
        min_length=1, max_length=20, examples=[["agentic-demo"]]
    )
    loads: Annotated[list[Factor], AfterValidator(different)] = Field(
        [1.0], min_length=1, max_length=10, description="Factors on the rate of arrivals", examples=[[0.5, 1, 2]]
    )
    pool: str = Field(min_length=1, max_length=63, examples=["demo"])
    pacing: Pacing = "auto"
    duration_s: Duration = Field(600.0, description="Window from the start of each trace, in its time")
    seeds: Seeds = Field([1], min_length=1, max_length=20)
    arms: list[OneArm] = Field(
        min_length=1, max_length=ARMS_MAX, description="As in an experiment; the first is the baseline"
    )
    expect: list[ExpectIn] = Field([], max_length=50, description="Of every cell")
    slo: Slo = Field({}, description="Class → limits in ms")

    @property
    def runs(self) -> int:
        return len(self.traces) * len(self.loads) * len(self.arms) * len(self.seeds)

    @property
    def too_many(self) -> Problem | None:
        """Return why there are too many runs; empty if there are not."""
        if self.runs <= RUNS_MAX:
            return None
        parts: dict[str, Sequence[object]] = {
            "traces": self.traces,
            "loads": self.loads,
            "arms": self.arms,
            "seeds": self.seeds,
        }
        product = " × ".join(f"{len(values)} {name}" for name, values in parts.items())
        return Problem("seeds", self.runs, f"{product} are {self.runs} runs", f"at most {RUNS_MAX}")

    def cells(self) -> Iterator[tuple[int, ExperimentIn]]:
        """Yield (index of the trace, the experiment) for each trace and load."""
        shared = {name: getattr(self, name) for name in SHARED}
        for index, trace in enumerate(self.traces):
            for load in self.loads:
                name = f"{self.name[:80]}: {trace[:30]} × {load:g}"[:120]
                yield (
                    index,
                    # The parts are valid by themselves; only the number of arms may exceed an experiment's limit.
                    ExperimentIn.model_construct(
                        **shared, name=name, trace=trace, load_factor=load, mode="twin", time_scale=1.0
                    ),
                )


SHARED = ("question", "pool", "pacing", "duration_s", "seeds", "arms", "expect", "slo")
