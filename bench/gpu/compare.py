"""The twin beside a real engine, without a GPU: the engine model replays the records of `bench.gpu.engine`.

    .venv/bin/python -m bench.gpu.compare FILE... (default: those in bench/gpu/recorded)

Each load by three sets of constants: the profile of the model on that GPU (nothing fitted to this engine), a fit to the
points of the sweep that the file has, and a fit to the requests of the load before it (from the second load on). The
cached tokens of each request are given as measured. Mean |error| of a request and error of the means, in %; positive:
the twin is slower. The sweep measures the time in the API; the profile has a constant.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu.models import CONFIGS
from fleet.calibration.fit import CalibrationPoint, Fitted, fit
from fleet.calibration.limits import EngineLimits
from fleet.calibration.traffic.physical import physical_starts
from fleet.calibration.traffic.recorded import RecordedRequest
from fleet.calibration.traffic.replayed import EngineConstants, errors_of, replay
from fleet.calibration.traffic.traffic_fit import TooFewRequests, fit_traffic
from fleet.counted import percent
from fleet.engine.law import API_S, API_S_PER_TOKEN, law_of
from fleet.engine.power import draws_of
from fleet.engine.profiles import UnknownProfile, profile

RECORDED = Path(__file__).parent / "recorded"
ENGINE_VERSION = (0, 20)
COLUMNS = (
    "model",
    "load",
    "constants",
    "n",
    "TTFT each",
    "TTFT mean",
    "TTFT p99",
    "TPOT each",
    "TPOT mean",
    "E2E mean",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="*", default=sorted(RECORDED.glob("*.json.gz")))
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for path in parser.parse_args().file:
        for row in compared(record(path)):
            print(f"| {' | '.join(row)} |", flush=True)


def record(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def compared(found: dict[str, Any]) -> Iterator[list[str]]:
    limits = limits_of(found)
    before: list[RecordedRequest] = []
    for load in found["loads"]:
        requests = requests_of(load)
        for name, constants in sets(found, limits, before):
            off = errors_of(replay(requests, constants, limits).pairs)
            figures = (off.ttft, off.ttft_mean, off.ttft_p99, off.tpot, off.tpot_mean, off.e2e_mean)
            signs = ("", "+", "+", "", "+", "+")
            told = zip(figures, signs, strict=True)
            said = [percent(one, f"{sign}.0f") if one is not None else "" for one, sign in told]
            yield [found["model"], load["name"], name, str(off.n), *said]
        before = requests


def sets(
    found: dict[str, Any], limits: EngineLimits, before: Sequence[RecordedRequest]
) -> Iterator[tuple[str, EngineConstants]]:
    try:
        known = replace(profile(found["gpu"], found["model"], 1), version=ENGINE_VERSION)
        yield f"profile ({known.about})", EngineConstants(law_of(known), API_S, API_S_PER_TOKEN)
    except UnknownProfile as error:
        print(f"<!-- {error} -->")
    swept = swept_of(found, limits)
    yield "sweep", EngineConstants(swept.law, swept.api_s, 0.0)
    try:
        if before:
            starts = [one.drawing(draws_of(found["gpu"])) for one in physical_starts(found["model"], 1)]
            yield "traffic before", fit_traffic(before, limits, starts, lambda text: None, (True,)).constants
    except TooFewRequests as error:
        print(f"<!-- {error} -->")


def swept_of(found: dict[str, Any], limits: EngineLimits) -> Fitted:
    points = [CalibrationPoint(**point) for point in found["calibration"]["last"]["points"]]
    swept = fit(points, limits.max_num_batched_tokens, experts="num_experts" in CONFIGS[found["model"]])
    return replace(swept, law=swept.law.drawing(draws_of(found["gpu"])))


def limits_of(found: dict[str, Any]) -> EngineLimits:
    return EngineLimits(**found["calibration"]["last"]["limits"])


def requests_of(load: dict[str, Any]) -> list[RecordedRequest]:
    """Return the requests as the client measured them, with cached tokens of receipts matched by length and order."""
    cached: dict[tuple[int, int], list[int]] = {}
    for one in sorted(load["receipts"], key=lambda one: float(one["at"])):
        key = (one["actual_prompt_tokens"], one["output_tokens"])
        cached.setdefault(key, []).append(one["cached_tokens"] or 0)
    rows = []
    for one in sorted(load["sent"], key=lambda one: float(one["at_s"])):
        held = cached.get((one["prompt_tokens"], one["output_tokens"]))
        rows.append(
            RecordedRequest(
                sent_s=one["at_s"],
                prompt_tokens=one["prompt_tokens"],
                cached_tokens=min(held.pop(0) if held else 0, one["prompt_tokens"] - 1),
                output_tokens=one["output_tokens"],
                ttft_s=one["ttft_s"],
                tpot_s=one["tpot_s"] or None,
            )
        )
    return rows


if __name__ == "__main__":
    main()
