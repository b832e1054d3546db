"""The twin's results on strategies, thresholds and offloads: the tables of docs/findings/, all simulated.

    .venv/bin/python -m bench.findings [--tables design,thresholds,bandwidths,static,classes,
                                       own-fleet,strategies,fleets,cost,tiers]
                                       [--seeds 5] [--window 600] [--processes 2] [--traces FOLDER] [--write]
                                       [--engines 8] [--gpu h100_sxm] [--model-profile Qwen3-32B] [--tp 2]
                                       [--loads 0.5 1 2] [--arms NAME ...]

The fleet is 8 engines of Qwen3-32B on two H100 each, as the kind `sim` models them, unless another is given; the arms
are the presets of matrix experiments. The table of fleets plays several, each loaded in proportion to the prompts that
it can compute: `--tables fleets --window 200` is what its page shows. The table of costs plays the demo
fleet: H100s with Llama-3.1-8B, priced as in a fleet document without prices. Virtual time: other load on the machine
changes nothing but how long it takes. FOLDER is where WEIR_TRACE_DIR points; without it only generated traffic is
played. --write remakes the tables in docs/findings/.
"""

import argparse
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import by_class, costs, own_fleet, sheets, walls
from bench.played import (
    BETTER_IS_MORE,
    DEMO,
    DESIGN,
    DOCUMENTS,
    ENGINE,
    ENGINES,
    GENERATED,
    METRICS,
    TITLES,
    TRACES,
    UNMARKED,
    Cell,
    Played,
    Runs,
    named,
    play,
    requests_of,
    spread,
)
from controlplane.evidence.experiments.matrix import presets
from controlplane.evidence.experiments.matrix.presets import ON_FLEET_OF_DESIGN
from fleet.engine.law import law_of
from fleet.engine.profiles import profile

PAGES = Path(__file__).resolve().parent.parent / "docs" / "findings"
LOADS = (0.5, 1.0, 2.0)
AT_40K = {**presets.C[2], "name": "adaptive_v1 at 40k"}
AT_20K = {**presets.C[1], "name": "adaptive_v1 at 20k"}
PEERS = (*presets.PEERS, "session_sticky", "random", "weighted", "ppd", AT_20K, AT_40K, "priced")
CONTENDERS = ("lpwl", "cache_aware", "smetric", AT_40K, "priced")  # the others lose on the default fleet
COMPARED = ("ttft_p90", "e2e_p50", "goodput")  # metrics that decide about the default


@dataclass(frozen=True)
class Fleet:
    """A fleet of equal engines, by their built-in profile."""

    engines: int
    gpu: str
    model_profile: str
    tp: int

    @property
    def changes(self) -> dict[str, Any]:
        """Return the changes to an arm that plays on this fleet."""
        return {
            "replicas": self.engines,
            "engine": {"gpu": self.gpu, "model_profile": self.model_profile, "tp": self.tp},
        }

    @property
    def capacity(self) -> float:
        """Return the number of prompts of one chunk that the fleet computes per second."""
        return self.engines / law_of(profile(self.gpu, self.model_profile, self.tp)).prefill_s(CHUNK)

    def __str__(self) -> str:
        made = profile(self.gpu, self.model_profile, self.tp)
        source = f", efficiencies of {made.transferred}" if made.transferred else ""
        return f"{self.engines} × {self.model_profile} on {self.tp} {self.gpu}{source}"


CHUNK = 8_192  # tokens
ON = Fleet(ENGINES, "h100_sxm", "Qwen3-32B", 2)  # fleet to which 1× refers
FLEETS = (
    ON,
    Fleet(4, "h100_sxm", "Qwen3-32B", 2),
    Fleet(32, "h100_sxm", "Qwen3-32B", 2),
    Fleet(8, "h100_sxm", "Llama-3.1-8B", 1),
    Fleet(8, "b200_sxm", "Llama-3.3-70B", 4),
    Fleet(8, "h100_sxm", "Qwen3-30B-A3B", 1),
    Fleet(4, "b200_sxm", "Qwen3-30B-A3B", 1),
)


def best_or_tied(runs: Runs, metric: str) -> set[str]:
    """Return the arms that no other arm beats: their paired differences over the seeds have intervals that contain
    zero, or differ by less than 1 %."""
    sign = -1.0 if metric in BETTER_IS_MORE else 1.0
    values = {arm: [sign * METRICS[metric](one) for one in played] for arm, played in runs.items()}
    return {arm for arm in values if not any(_beats(values[other], values[arm]) for other in values if other != arm)}


def _beats(better: Sequence[float], worse: Sequence[float]) -> bool:
    if not all(map(math.isfinite, better)):
        return False
    if not all(map(math.isfinite, worse)):
        return True
    middle, half = spread([w - b for w, b in zip(worse, better, strict=True)])
    return middle > 0.01 * abs(fmean(better)) and not middle - (0.0 if math.isnan(half) else half) <= 0


def table(runs: Runs, metrics: Sequence[str] = tuple(METRICS)) -> Iterator[str]:
    yield "| | " + " | ".join(TITLES[metric] for metric in metrics) + " |"
    yield "|---" * (len(metrics) + 1) + "|"
    marks = {metric: best_or_tied(runs, metric) for metric in metrics if metric not in UNMARKED}
    for arm, played in runs.items():
        cells = (_cell(played, metric, arm in marks.get(metric, ())) for metric in metrics)
        yield f"| {arm} | {' | '.join(cells)} |"


def _cell(played: Sequence[Played], metric: str, marked: bool) -> str:
    middle, half = spread([METRICS[metric](one) for one in played])
    if not math.isfinite(middle):
        return "not answered"
    digits = 0 if metric == "refused" else 1 if metric in ("cached", "goodput", "tpot_p50") else 2
    text = f"{middle:,.{digits}f}" + ("" if math.isnan(half) or metric == "refused" else f" ± {half:,.{digits}f}")
    return f"**{text}**" if marked else text


class Player:
    """Plays cells, spread over processes."""

    def __init__(self, options: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
        self.options, self.pool = options, pool
        engine = {"gpu": options.gpu, "model_profile": options.model_profile, "tp": options.tp}
        self.fleet = {"replicas": options.engines, "engine": engine}
        self._runs: dict[tuple[Cell, str, int], Future[Played]] = {}  # runs, which tables share, by key
        self.seeds = range(1, options.seeds + 1)

    def cell(self, trace: str, load: float) -> Cell:
        return Cell(trace, load, self.options.window, str(self.options.traces or ""))

    @property
    def traces(self) -> list[str]:
        return [*(TRACES if self.options.traces else ()), GENERATED]

    def runs(self, cell: Cell, arms: Iterable[Any]) -> Runs:
        asked = [self._on_fleet(named(arm)) for arm in arms]
        jobs = {arm["name"]: [self._run(cell, arm, seed) for seed in self.seeds] for arm in asked}
        return {name: [job.result() for job in each] for name, each in jobs.items()}

    def _on_fleet(self, arm: dict[str, Any]) -> dict[str, Any]:
        """Return the arm's settings on this fleet; the arm's own settings of its engines come first."""
        own = arm.get("fleet", {})
        return {**arm, "fleet": {**self.fleet, **own, "engine": {**self.fleet["engine"], **own.get("engine", {})}}}

    def _run(self, cell: Cell, arm: Mapping[str, Any], seed: int) -> "Future[Played]":
        played = {name: value for name, value in arm.items() if name != "name"}
        key = (cell, json.dumps(played, sort_keys=True), seed)
        if key not in self._runs:
            self._runs[key] = self.pool.submit(play, cell, arm, seed)
        return self._runs[key]

    def head(self, cell: Cell, runs: Runs) -> str:
        counts = [len(one.ttft) for one in next(iter(runs.values()))]
        each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
        return f"**{cell.trace}, {cell.load:g}× load** ({each} requests in each of {len(counts)} seeds)"

    def several(self, arms: Sequence[Any], loads: Sequence[float] = (1.0, 2.0)) -> Iterator[str]:
        for trace in self.traces:
            for load in loads:
                cell = self.cell(trace, load)
                runs = self.runs(cell, arms)
                yield from ("", self.head(cell, runs), "", *table(runs))

    def static(self) -> Iterator[str]:
        """Yield the KV wall of a fixed split."""
        arms = [presets.A, presets.B, presets.D[1], presets.STATIC]
        yield from walls.head()
        for trace in self.traces:
            for load in (1.0, 2.0):
                yield from walls.rows(f"{trace}, {load:g}×: ", self.runs(self.cell(trace, load), arms))

    def classes(self) -> Iterator[str]:
        """Yield the gains and losses of classes, on recorded traffic whose prompts share prefixes."""
        yield from ("", f"| {' | '.join(by_class.SHARES)} |", "|---" * len(by_class.SHARES) + "|")
        yield by_class.DESIGN_SHARES
        for trace in self.traces:
            yield by_class.trace_shares(trace, requests_of(self.cell(trace, 1.0), 1)[0])
        for trace in [name for name in TRACES if name != "Azure code"] if self.options.traces else [GENERATED]:
            for load in (1.0, 2.0):
                cell = self.cell(trace, load)
                runs = self.runs(cell, by_class.ARMS)
                yield from ("", f"{self.head(cell, runs)}: {by_class.shares(runs)}", "", *by_class.table(runs))

    def own_fleet(self) -> Iterator[str]:
        """Yield the design's arms on its author's fleet, beside the author's measurements."""
        for trace in ("coding agent" if self.options.traces else GENERATED, DESIGN):
            cell = self.cell(trace, 1.0)
            runs = self.runs(cell, ON_FLEET_OF_DESIGN)
            yield from ("", f"{self.head(cell, runs)}: {by_class.shares(runs)}", "", *own_fleet.table(runs))
            yield from ("", *by_class.table(runs, by_class.WITH_TPOT_P90), *walls.head(), *walls.rows("", runs))

    def thresholds(self) -> Iterator[str]:
        """Yield experiment C, over all requests and by class."""
        yield from self.several([presets.A, *presets.C])
        for load in (1.0, 2.0):
            cell = self.cell(self.traces[0], load)
            runs = self.runs(cell, by_class.THRESHOLDS)
            yield from ("", f"{self.head(cell, runs)}, by class", "", *by_class.table(runs, by_class.WITH_TPOT_P90))

    def cost(self) -> Iterator[str]:
        """Yield the cost of the demo fleet, and of the smallest one that serves the same requests within the SLO."""
        cell = self.cell(DEMO, costs.COST_LOAD)
        found = self._shrunk(cell, costs.COST_ARMS)
        yield from ("", self._head_of(cell, found), "", *costs.table(found))

    def tiers(self) -> Iterator[str]:
        """Yield the savings of each tier below HBM where documents are read again."""
        cell = self.cell(DOCUMENTS, costs.TIER_LOAD)
        found = self._shrunk(cell, costs.TIER_ARMS)
        yield from ("", self._head_of(cell, found), "", *costs.tier_table(found))

    def _shrunk(self, cell: Cell, arms: Sequence[costs.Arm]) -> dict[str, list[costs.Shrunk]]:
        jobs = {
            name: [self.pool.submit(costs.shrunk, cell, strategy, engine, seed) for seed in self.seeds]
            for name, strategy, engine in arms
        }
        return {name: [job.result() for job in each] for name, each in jobs.items()}

    def _head_of(self, cell: Cell, found: Mapping[str, Sequence[costs.Shrunk]]) -> str:
        return self.head(cell, {"": [one.whole for one in next(iter(found.values()))]})

    def strategies(self) -> Iterator[str]:
        played = []
        for trace in self.traces:
            for load in self.options.loads:
                cell = self.cell(trace, load)
                played.append(self.runs(cell, self.options.arms))
                yield from ("", self.head(cell, played[-1]), "", *table(played[-1]))
        yield from won(played)

    def fleets(self) -> Iterator[str]:
        """Yield the contenders on several fleets; Azure's trace shares no prefixes, which makes all strategies
        equal."""
        for fleet in FLEETS:
            played = []
            scale = fleet.capacity / ON.capacity
            arms = [{**named(arm), "fleet": fleet.changes} for arm in CONTENDERS]
            yield from ("", f"### {fleet}")
            for trace in self.traces:
                for load in FLEET_LOADS if trace != "Azure code" else ():
                    folder = str(self.options.traces or "")
                    cell = Cell(trace, round(load * scale, 3), round(self.options.window * scale, 1), folder)
                    played.append(self.runs(cell, arms))
                    head = self.head(replace(cell, load=load), played[-1])
                    yield from ("", head, "", *table(played[-1], FLEET_METRICS))
            yield from won(played)


def won(played: Sequence[Runs]) -> Iterator[str]:
    """Yield in how many of the cells each arm is best or tied."""
    wins = Counter((arm, metric) for runs in played for metric in COMPARED for arm in best_or_tied(runs, metric))
    yield from ("", f"**Best or tied, of {len(played)} cells**", "")
    yield "| | " + " | ".join(TITLES[metric] for metric in COMPARED) + " |"
    yield "|---" * (len(COMPARED) + 1) + "|"
    for arm in sorted(dict.fromkeys(arm for arm, _ in wins), key=lambda arm: -sum(wins[arm, of] for of in COMPARED)):
        yield f"| {arm} | " + " | ".join(str(wins[arm, metric]) for metric in COMPARED) + " |"


FLEET_LOADS = (2.0,)  # loads at which strategies differ
FLEET_METRICS = ("ttft_p90", "e2e_p50", "tpot_p50", "goodput")
TABLES: dict[str, Callable[[Player], Iterator[str]]] = {
    "design": lambda player: player.several([presets.A, presets.B, presets.D[1], presets.STATIC]),
    "thresholds": Player.thresholds,
    "bandwidths": lambda player: player.several([presets.A, *presets.D]),
    "static": Player.static,
    "classes": Player.classes,
    "own-fleet": Player.own_fleet,
    "strategies": Player.strategies,
    "fleets": Player.fleets,
    "cost": Player.cost,
    "tiers": Player.tiers,
}
ON_PAGES = ("cost", "tiers")


def write(name: str, lines: Sequence[str]) -> None:
    """Replace a short table between the two marks of its page; write the others as CSV files."""
    if name not in ON_PAGES:
        sheets.write(name, lines)
        return
    page = PAGES / f"{name}.md"
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    page.write_text(pattern.sub(lambda _: "\n".join([begin, *lines, "", end]), page.read_text()))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--window", type=float, default=600.0, help="s of each trace")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--traces", type=Path, default=os.environ.get("WEIR_TRACE_DIR"), metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="into docs/findings/")
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--gpu", default=ENGINE["gpu"])
    parser.add_argument("--model-profile", default=ENGINE["model_profile"])
    parser.add_argument("--tp", type=int, default=ENGINE["tp"])
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="of the table of strategies")
    parser.add_argument("--arms", nargs="+", choices=[named(arm)["name"] for arm in PEERS], help="of the same")
    options = parser.parse_args()
    options.arms = [arm for arm in PEERS if not options.arms or named(arm)["name"] in options.arms]
    played = (options.engines, options.gpu, options.model_profile, options.tp, tuple(options.loads))
    if options.write and (*played, len(options.arms)) != (ENGINES, *ENGINE.values(), LOADS, len(PEERS)):
        parser.error("--write: docs/findings/ has the default fleet, loads and arms; leave it out to print the tables")
    return options


def main() -> None:
    options = arguments()
    with ProcessPoolExecutor(options.processes) as pool:
        player = Player(options, pool)
        for name in options.tables.split(","):
            lines = list(TABLES[name](player))
            print(f"\n## {name}", *lines, sep="\n", flush=True)
            if options.write:
                write(name, lines)


if __name__ == "__main__":
    main()
