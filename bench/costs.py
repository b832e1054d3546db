"""The cost of a fleet that serves the same requests within the SLO: with another policy, and with a tier below HBM.

`python -m bench.costs` writes pauses.csv: agents that come back after two minutes in the middle, three seeds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import sheets
from bench.played import ENGINES, METRICS, PAUSING, Cell, Played, play, spread
from controlplane.evidence.experiments.results.statistics import stats
from fleet.engine.tiers.sizes import drive_writes_per_day
from fleet.kinds import KINDS
from fleet.kinds.kind import Hardware, hardware_of_pool
from fleet.kinds.options.option import build
from fleet.systems.prices import Prices, per_million

ENGINE = {"gpu": "h100_sxm", "model_profile": "Llama-3.1-8B", "tp": 1}  # engine of the demo fleet
GOOD_SHARE = 0.95  # share of the requests within the SLO
Arm = tuple[str, str, dict[str, Any]]  # name, strategy, options of the engines
TUTTI = {"ssd_gb": 14_000, "ssd_access": "ssd-tutti"}
COST_ARMS: tuple[Arm, ...] = (
    ("round_robin", "round_robin", {}),
    ("default", "priced", {}),
    ("default, 256 GB of host memory each", "priced", {"dram_gb": 256}),
    ("default, 14 TB of drives each by Tutti", "priced", TUTTI),
    ("round_robin, 14 TB of drives each by Tutti", "round_robin", TUTTI),
)
COST_LOAD = 4.0
TIER_ARMS: tuple[Arm, ...] = tuple(
    (name, "priced", {"block_size": 64, **engine})
    for name, engine in (
        ("HBM only", {}),
        ("256 GB of host memory", {"dram_gb": 256}),
        ("14 TB of drives by LMCache", {**TUTTI, "ssd_access": "ssd"}),
        ("14 TB of drives by GDS", {**TUTTI, "ssd_access": "ssd-gds"}),
        ("14 TB of drives by Tutti", TUTTI),
        ("the same, writing what is used twice", {**TUTTI, "tier_write": "second_use"}),
    )
)
TIER_LOAD = 2.0
RATED_YEARS = 5  # rated life of drives that are overwritten once a day


@dataclass(frozen=True)
class Shrunk:
    """The whole fleet with one seed, and the smallest one that meets the SLO."""

    whole: Played
    instances: int  # size of the smallest fleet; 0 if the whole fleet misses the SLO
    smallest: Played


def arm_of(strategy: str, engine: Mapping[str, Any], instances: int) -> dict[str, Any]:
    return {"strategy": strategy, "fleet": {"replicas": instances, "engine": {**ENGINE, **engine}}}


def shrunk(cell: Cell, strategy: str, engine: Mapping[str, Any], seed: int) -> Shrunk:
    """Remove one instance at a time until the SLO is missed."""
    whole = smallest = play(cell, arm_of(strategy, engine, ENGINES), seed)
    kept = 0
    for instances in range(ENGINES, 0, -1):
        one = whole if instances == ENGINES else play(cell, arm_of(strategy, engine, instances), seed)
        if METRICS["goodput"](one) < 100 * GOOD_SHARE:
            break
        kept, smallest = instances, one
    return Shrunk(whole, kept, smallest)


def hardware(engine: Mapping[str, Any], instances: int) -> Hardware:
    kind = KINDS["sim"]
    return hardware_of_pool(
        kind, build(kind.spec, {**ENGINE, **engine}), [f"e-{number}" for number in range(instances)]
    )


def dollars_per_hour(engine: Mapping[str, Any], instances: int) -> float:
    """Return the cost of this number of engines at the default prices."""
    held = hardware(engine, instances)
    return Prices().per_hour(held.gpus, held.dram_gb, held.ssd_gb)


_COST = ("8 engines, $/day", "$ per million output tokens", "TTFT p90, s", "engines needed", "$/day", "$ per million")


def table(found: Mapping[str, Sequence[Shrunk]], arms: Sequence[Arm] = COST_ARMS) -> Iterator[str]:
    yield f"| | {' | '.join(_COST)} |"
    yield "|---" * (len(_COST) + 1) + "|"
    for name, _, engine in arms:
        yield f"| {name} | {' | '.join(cells(engine, found[name]))} |"


def cells(engine: Mapping[str, Any], found: Sequence[Shrunk]) -> Iterator[str]:
    yield f"{24 * dollars_per_hour(engine, ENGINES):,.0f}"
    yield _interval([_per_million(engine, ENGINES, one.whole) for one in found], 2)
    yield _interval([METRICS["ttft_p90"](one.whole) for one in found], 2)
    yield from _smallest(engine, found)


def _smallest(engine: Mapping[str, Any], found: Sequence[Shrunk]) -> Iterator[str]:
    if not all(one.instances for one in found):
        yield from (f"more than {ENGINES}", "–", "–")
        return
    yield _interval([float(one.instances) for one in found], 1)
    yield _interval([24 * dollars_per_hour(engine, one.instances) for one in found], 0)
    yield _interval([_per_million(engine, one.instances, one.smallest) for one in found], 2)


_TIERS = (
    "TTFT p50 / p90 of 8, s",
    "cached, %",
    "engines needed",
    "$/day",
    "$ per million output tokens",
    "drive writes a day",
    "life, years",
)


def tier_table(found: Mapping[str, Sequence[Shrunk]]) -> Iterator[str]:
    yield f"| each engine has | {' | '.join(_TIERS)} |"
    yield "|---" * (len(_TIERS) + 1) + "|"
    for name, _, engine in TIER_ARMS:
        yield f"| {name} | {' | '.join(tier_cells(engine, found[name]))} |"


def tier_cells(engine: Mapping[str, Any], found: Sequence[Shrunk]) -> Iterator[str]:
    """Yield the cells of a tier. Writes to drives are those of the smallest fleet."""
    halves = [stats.quantile(sorted(one.whole.ttft), 0.5) for one in found]
    yield f"{_interval(halves, 2)} / {_interval([METRICS['ttft_p90'](one.whole) for one in found], 2)}"
    yield _interval([100 * one.whole.cached for one in found], 1)
    yield from _smallest(engine, found)
    drives = [
        drive_writes_per_day(
            one.smallest.drive_bytes / one.smallest.virtual_s, 1e9 * hardware(engine, one.instances).ssd_gb
        )
        for one in found
        if one.smallest.drive_bytes and one.instances
    ]
    yield _interval(drives, 2) if drives else "–"
    yield _interval([RATED_YEARS / one for one in drives], 1) if drives else "–"


def _per_million(engine: Mapping[str, Any], instances: int, one: Played) -> float:
    return per_million(dollars_per_hour(engine, instances), one.output_per_s) or math.inf


def _interval(values: Sequence[float], digits: int) -> str:
    middle, half = spread(values)
    return f"{middle:,.{digits}f}" + ("" if math.isnan(half) else f" ± {half:,.{digits}f}")


PAUSE_ARMS: tuple[Arm, ...] = (
    ("default", "priced", {"block_size": 64}),
    ("default, 14 TB of drives each by Tutti", "priced", {"block_size": 64, **TUTTI}),
)


PAUSE_CELL = Cell(PAUSING, 1.0, 1_800.0, "")


def main() -> None:
    rows = [("arm", "engines needed, by seed", "$/day, by seed")]
    for name, strategy, engine in PAUSE_ARMS:
        needed = [shrunk(PAUSE_CELL, strategy, engine, seed).instances for seed in (1, 2, 3)]
        dollars = (f"{24 * dollars_per_hour(engine, each):,.0f}" for each in needed)
        rows.append((name, ", ".join(map(str, needed)), ", ".join(dollars)))
    sheets.save("pauses", rows)


if __name__ == "__main__":
    main()
