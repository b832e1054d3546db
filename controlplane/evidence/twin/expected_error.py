"""The expected error of the twin against a warm engine, by the source of its constants. docs/twin.md explains each
number."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from typing_extensions import TypedDict

from controlplane.common.description import Description
from fleet.counted import percent
from fleet.engine.engine_model import EngineModel
from fleet.engine.tables import EXPECTED

if TYPE_CHECKING:
    from controlplane.evidence.twin.measured_engine import FinishedCalibration

Basis = Literal["profile", "transferred", "calibrated"]


class ExpectedError(TypedDict):
    """The expected error of the twin against warm engines, by the source of its constants. 0.05 means 5 %; null:
    unknown."""

    tpot: float | None
    e2e: float | None
    ttft_mean: float | None
    ttft_p99: Annotated[float | None, Description("Null without a measurement under load")]


BUILT_IN: Mapping[str, ExpectedError] = {
    "profile": ExpectedError(tpot=0.05, e2e=0.07, ttft_mean=0.10, ttft_p99=0.20),
    "transferred": ExpectedError(tpot=0.15, e2e=0.15, ttft_mean=0.20, ttft_p99=None),
}
# A sweep measures single requests and equal groups; for a load that mixes them, no smaller error is known.
LEAST_SWEEP = ExpectedError(tpot=0.05, e2e=0.07, ttft_mean=0.10, ttft_p99=None)
# Half the difference between equal runs of a real engine (docs/twin.md); for a fit to traffic, no smaller error is
# known.
LEAST_TRAFFIC = ExpectedError(tpot=0.02, e2e=0.02, ttft_mean=0.05, ttft_p99=0.30)

EXPERTS = (
    "mixtures of experts stall at high rates, which the twin does not model: there it was 20 to 45 % too fast; "
    "at high rates, compare policies only by direction"
)
LATENT = "tables of latent attention (MLA) were 7 to 14 % off in TPOT, and up to 26 % too slow from 16 requests at once"
TIERS = "the TTFT p99 of KV in memory or on disk below the GPU is not reproduced: compare means"


def of_built_in(basis: Basis, family: str = "") -> ExpectedError:
    """Return the error of built-in constants. `family` is the family of models from whose measured tables they are
    taken; empty if they are from a fit."""
    if family not in EXPECTED:
        return BUILT_IN[basis]
    tpot, e2e, ttft = EXPECTED[family]
    return ExpectedError(tpot=tpot, e2e=e2e, ttft_mean=ttft, ttft_p99=None)


def of_calibration(row: "FinishedCalibration") -> ExpectedError:
    held_out = row.held_out
    if not held_out:
        tpot, ttft = (max(0.0, error or 0.0) for error in (row.tpot_error, row.ttft_error))
        least = LEAST_SWEEP
        return ExpectedError(
            tpot=max(tpot, least["tpot"] or 0.0),
            e2e=max(tpot, least["e2e"] or 0.0),
            ttft_mean=max(ttft, least["ttft_mean"] or 0.0),
            ttft_p99=None,
        )

    def at_least(key: str, least: float | None) -> float | None:
        return None if held_out.get(key) is None else max(least or 0.0, abs(held_out[key]))

    return ExpectedError(
        tpot=at_least("tpot_mean", LEAST_TRAFFIC["tpot"]),
        e2e=at_least("e2e_mean", LEAST_TRAFFIC["e2e"]),
        ttft_mean=at_least("ttft_mean", LEAST_TRAFFIC["ttft_mean"]),
        ttft_p99=at_least("ttft_p99", LEAST_TRAFFIC["ttft_p99"]),
    )


def described(expected: ExpectedError | None) -> str:
    """Format the expected error; empty for results of older versions."""
    if not expected:
        return ""
    values = {
        "TPOT": expected.get("tpot"),
        "E2E": expected.get("e2e"),
        "mean TTFT": expected.get("ttft_mean"),
        "TTFT p99": expected.get("ttft_p99"),
    }
    known = ", ".join(f"{name} {percent(value)}" for name, value in values.items() if value is not None)
    unknown = ", ".join(name for name, value in values.items() if value is None)
    return f"{known} of a warm engine" + (f"; {unknown} unknown" if unknown else "")


def cautions(models: list[EngineModel], family: str = "") -> tuple[str, ...]:
    """Return the inaccuracies that remain with any constants."""
    found = {
        EXPERTS: family in ("moe", "latent") or any(model.law.experts_s for model in models),
        LATENT: family == "latent",
        TIERS: any(model.tiers is not None for model in models),
    }
    return tuple(text for text, holds in found.items() if holds)
