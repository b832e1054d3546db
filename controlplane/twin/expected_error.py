"""How far a result of the twin is expected to be from a warm engine, by the source of its constants. docs/twin.md says
what each number is known from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from fleet.counted import percent
from fleet.engine.engine_model import EngineModel
from fleet.models import Calibration

Basis = Literal["profile", "transferred", "calibrated"]


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Relative, 0.05: 5 %. None: unknown."""

    tpot: float | None
    e2e: float | None
    ttft_mean: float | None
    ttft_p99: float | None

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


BUILT_IN: Mapping[str, ExpectedError] = {
    "profile": ExpectedError(tpot=0.05, e2e=0.07, ttft_mean=0.10, ttft_p99=0.20),
    "transferred": ExpectedError(tpot=0.15, e2e=0.15, ttft_mean=0.20, ttft_p99=None),
}
# A sweep measures single requests and equal groups; less than this is not known of a load that mixes them.
LEAST_SWEEP = ExpectedError(tpot=0.05, e2e=0.07, ttft_mean=0.10, ttft_p99=None)
LEAST = 0.02  # of held-out requests: the spread of an engine that repeats them
NAMES = {"tpot": "TPOT", "e2e": "E2E", "ttft_mean": "mean TTFT", "ttft_p99": "TTFT p99"}

EXPERTS = (
    "mixtures of experts stall at high rates, which the twin does not model: there it was 20 to 45 % too fast; "
    "at high rates, compare policies only by direction"
)
TIERS = "the TTFT p99 of KV in memory or on disk below the GPU is not reproduced: compare means"


def of_calibration(row: Calibration) -> ExpectedError:
    held_out = row.held_out
    if not held_out:
        tpot, ttft = (max(0.0, error or 0.0) for error in (row.tpot_error, row.ttft_error))
        least = LEAST_SWEEP
        return ExpectedError(
            tpot=max(tpot, least.tpot or 0.0),
            e2e=max(tpot, least.e2e or 0.0),
            ttft_mean=max(ttft, least.ttft_mean or 0.0),
            ttft_p99=None,
        )
    keys = ("tpot_mean", "e2e_mean", "ttft_mean", "ttft_p99")
    return ExpectedError(*(None if held_out.get(key) is None else max(LEAST, abs(held_out[key])) for key in keys))


def described(expected: Mapping[str, float | None] | None) -> str:
    """For people; empty for results of before."""
    if not expected:
        return ""
    known = ", ".join(
        f"{name} {percent(value)}" for key, name in NAMES.items() if (value := expected.get(key)) is not None
    )
    unknown = ", ".join(name for key, name in NAMES.items() if expected.get(key) is None)
    return f"{known} of a warm engine" + (f"; {unknown} unknown" if unknown else "")


def cautions(models: list[EngineModel]) -> tuple[str, ...]:
    """What stays wrong, whatever the constants."""
    found = {
        EXPERTS: any(model.law.experts_s for model in models),
        TIERS: any(model.tiers is not None for model in models),
    }
    return tuple(text for text, holds in found.items() if holds)
