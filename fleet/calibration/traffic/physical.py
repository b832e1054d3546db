"""Starting points of a fit to traffic: peaks of the GPU, sizes of the model, parallelism. Pure."""

import re
from collections.abc import Iterable

from fleet.calibration.traffic.replayed import EngineConstants
from fleet.calibration.traffic.traffic_fit import FitStart
from fleet.engine.law import API_S, API_S_PER_TOKEN, law_of
from fleet.engine.profiles import FITS, MODELS, PEAKS, Profile, UnknownProfile, profile

# Spread of the factor common to all steps: the standard deviation of its logarithm.
MEASURED = 0.2  # for a start from an earlier calibration
KNOWN = 0.3  # for a start with a known model and number of GPUs
UNKNOWN = 2.0  # for a start with an engine of any speed
WIDENED = 2.0  # factor on the spread of each constant if the model is unknown


def physical_starts(model: str, tensor_parallel: int | None) -> list[FitStart]:
    """Return the profiles of that model if it is known, otherwise all fitted profiles. `model` is the served name,
    such as Qwen/Qwen3-32B."""
    name = model_profile_of(model)
    of_model = [*_profiles(name, tensor_parallel or 1)] if name is not None else []
    known = [FitStart(_constants(made), KNOWN) for made in of_model]
    return known or [FitStart(_constants(profile(*fitted)), UNKNOWN, WIDENED) for fitted in FITS]


def model_profile_of(model: str) -> str | None:
    """Return the profile whose name begins the served model's name, whatever follows (-Instruct, -FP8)."""
    served = _plain(model.rstrip("/").rpartition("/")[2])
    found = [name for name in MODELS if re.match(re.escape(_plain(name)) + r"(?![a-z0-9])", served)]
    return max(found, key=len, default=None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("meta-")


def _profiles(name: str, tensor_parallel: int) -> Iterable[Profile]:
    for gpu in PEAKS:
        try:
            yield profile(gpu, name, tensor_parallel)
        except UnknownProfile:
            continue


def _constants(made: Profile) -> EngineConstants:
    return EngineConstants(law_of(made), API_S, API_S_PER_TOKEN)
