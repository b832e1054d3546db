"""Speed of the twin: a trace through simulated engines and the router's own decisions, in virtual time, on one core.

    .venv/bin/python -m bench.twin [--trace FILE] [--policies adaptive_v1 lpwl] [--shadow STRATEGY] [--seeds 2]
                                   [--requests N] [--engines 8] [--kv-events] [--tiers] [--gpu h100_sxm]
                                   [--model-profile NAME] [--speed N] [--whole]

With `--speed` requests arrive (and users think) that many times as fast. With `--whole` each run is made once more with
decisions that see every instance, however large the pool is, and the last column is the mean TTFT over that run's.

CPU seconds of this process, the minimum of --repeats; reading the trace is not counted.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.generated import BUILT_IN
from controlplane.evidence.traces.types import LoadedTrace
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import TwinFleet, TwinOutcome
from fleet.counted import percent
from fleet.engine.engine_model import EngineModel
from fleet.engine.law import law_of
from fleet.engine.profiles import DEFAULT_GPU, DEFAULT_MODEL, kv_blocks, profile
from fleet.engine.scheduler import Limits
from fleet.engine.tiers.devices import DRAM, SSD_TUTTI
from fleet.engine.tiers.model import TierModel, TiersModel
from fleet.engine.tiers.sizes import layout_of
from fleet.systems.tiers.study import DRAM_GB, SSD_GB
from router.policy.schema import document
from router.policy.types import ParsedPolicy
from router.pool import fleet_view

COLUMNS = (
    "policy",
    "seed",
    "n",
    "CPU s",
    "requests/s",
    "virtual s",
    "TTFT mean",
    "p90",
    "TPOT ms",
    "cached",
    "refused",
    "TTFT / whole",
)


def measured(
    fleet: TwinFleet, trace: LoadedTrace, policy: ParsedPolicy, shadow: ParsedPolicy | None, seed: int, repeats: int
) -> tuple[float, TwinOutcome]:
    """Return the minimum of CPU seconds, and the outcome."""
    least = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        outcome = simulate(fleet, policy, trace.requests, pacing=trace.pacing, seed=seed, shadow=shadow)
        least = min(least, time.process_time() - began)
    return least, outcome


def mean_ttft(outcome: TwinOutcome) -> float:
    return fmean(one.ttft_s for one in outcome.requests if one.ttft_s is not None)


def row(name: str, seed: int, seconds: float, outcome: TwinOutcome, whole: TwinOutcome | None) -> str:
    ok = [one for one in outcome.requests if one.outcome == "ok"]
    ttft = sorted(one.ttft_s for one in ok if one.ttft_s is not None)
    tpot = [one.tpot_s for one in ok if one.tpot_s is not None]
    count = len(outcome.requests)
    cells = (
        name,
        seed,
        f"{count:,}",
        f"{seconds:.2f}",
        f"{count / seconds:,.0f}",
        f"{outcome.virtual_s:,.0f}",
        f"{mean_ttft(outcome):.3f}",
        f"{stats.quantile(ttft, 0.9):.3f}",
        f"{1000 * fmean(tpot):.2f}",
        percent(sum(one.cached_tokens for one in ok) / sum(one.input_tokens for one in ok), ".1f"),
        sum(one.outcome == "refused" for one in outcome.requests),
        f"{mean_ttft(outcome) / mean_ttft(whole):.4f}" if whole is not None else "",
    )
    return f"| {' | '.join(map(str, cells))} |"


def trace_of(options: argparse.Namespace, seed: int) -> LoadedTrace:
    whole = registry.read(options.trace.read_bytes(), seed) if options.trace else BUILT_IN["agentic-demo"]()
    speed = options.speed
    requests = [
        replace(one, at_s=one.at_s / speed, think_s=one.think_s / speed) for one in whole.requests[: options.requests]
    ]
    return LoadedTrace(whole.format, requests, whole.pacing)


def fleet_of(options: argparse.Namespace) -> TwinFleet:
    made = profile(options.gpu, options.model_profile)
    tiers = None
    if options.tiers:
        sizes = (TierModel(DRAM, DRAM_GB * 1e9), TierModel(SSD_TUTTI, SSD_GB * 1e9))
        tiers = TiersModel(layout=layout_of(made), tiers=sizes)
    engine = EngineModel(law_of(made), kv_blocks(made), Limits(), kv_events=options.kv_events, tiers=tiers)
    return TwinFleet({f"chat-{number}": engine for number in range(options.engines)})


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a trace file; default: the built-in agentic-demo")
    parser.add_argument(
        "--policies", nargs="+", default=["adaptive_v1"], help="strategies with their default parameters"
    )
    parser.add_argument("--shadow", help="a strategy that is asked beside each of them")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--requests", type=int, help="of each run; default: all")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--whole", action="store_true", help="compare with decisions that see every instance")
    parser.add_argument("--kv-events", action="store_true", help="the engines publish them")
    parser.add_argument("--tiers", action="store_true", help="256 GB of host memory and 14 TB of drives below each GPU")
    parser.add_argument("--gpu", default=DEFAULT_GPU)
    parser.add_argument("--model-profile", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=3, help="of each run; the minimum CPU time counts")
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    shadow = document.parse(document.default(options.shadow)) if options.shadow else None
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    for seed in range(1, options.seeds + 1):
        trace = trace_of(options, seed)
        for name in options.policies:
            policy = document.parse(document.default(name))
            seconds, outcome = measured(fleet_of(options), trace, policy, shadow, seed, options.repeats)
            whole = None
            if options.whole:
                with patch.object(fleet_view, "COMPARED", options.engines):
                    whole = simulate(fleet_of(options), policy, trace.requests, pacing=trace.pacing, seed=seed)
            print(row(name, seed, seconds, outcome, whole), flush=True)
    print(f"\n{options.engines} engines of {options.model_profile} on {options.gpu}; times in s.")


if __name__ == "__main__":
    main()
