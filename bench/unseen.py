"""The twin's results on the default strategy beyond the tables of docs/findings/, all simulated:

    .venv/bin/python -m bench.unseen [--tables traffic,sessions,roles,weights] [--seeds N] [--processes 2]
                                     [--traces FOLDER]

traffic: kinds that it was not made with, beside five strategies; sessions: four more kinds, where engines are full;
roles: instances that only prefill or only decode, beside those made for them; weights: its own, halved and doubled, at
twice the conversation's rate and at the coding agent's own. The fleet is that of bench.findings; 3 seeds, of weights 5.
FOLDER is where WEIR_TRACE_DIR points.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from bench.findings import COMPARED, table, won
from bench.played import DEMO, DOCUMENTS, ENGINE, ENGINES, GENERATED, Cell, Runs, named, play
from bench.sessions import KINDS
from controlplane.evidence.experiments.matrix.presets import connectors
from router.policy.schema import document as documents

WEIGHTS = ("strategy.answer_tokens", "strategy.stall_weight")
LINK_GB_PER_S = 9.7  # between prefill and decode instances


class Player:
    def __init__(self, options: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
        self.options, self.pool = options, pool

    def cell(self, trace: str, load: float, window_s: float, answers: float = 1.0) -> Cell:
        return Cell(trace, load, window_s, str(self.options.traces), answers)

    def runs(self, cell: Cell, arms: Sequence[Any], seeds: int) -> Runs:
        fleet = {"replicas": ENGINES, "engine": ENGINE}
        asked = [{"fleet": fleet, **named(arm)} for arm in arms]
        numbers = range(1, (self.options.seeds or seeds) + 1)
        jobs = {arm["name"]: [self.pool.submit(play, cell, arm, seed) for seed in numbers] for arm in asked}
        return {name: [job.result() for job in each] for name, each in jobs.items()}

    def traffic(self) -> Iterator[str]:
        arms = ("lpwl", "cache_aware", "smetric", "adaptive_v1", "least_requests", "priced")
        asked = (
            ("conversation", (0.5, 1.0), 6.0),
            ("conversation", (2.0, 3.0), 0.05),
            (GENERATED, (0.5, 1.0), 6.0),
            (DOCUMENTS, (4.0,), 1.0),
            (DEMO, (4.0,), 1.0),
        )
        cells = [self.cell(trace, load, 400.0, answers) for trace, loads, answers in asked for load in loads]
        yield from self._compared([(cell, "", self.runs(cell, arms, 3)) for cell in cells])

    def sessions(self) -> Iterator[str]:
        arms = ("lpwl", "cache_aware", "smetric", "adaptive_v1", "priced")
        loads = {"heavy-tailed": (2.0, 4.0), "long agents": (1.0, 2.0)}
        cells = [self.cell(name, load, 400.0) for name in KINDS for load in loads.get(name, (5.0, 8.0))]
        yield from self._compared([(cell, "", self.runs(cell, arms, 3)) for cell in cells])

    def roles(self) -> Iterator[str]:
        played = []
        for prefill, load in product((4, 6), (1.0, 2.0)):
            cell = self.cell("conversation", load, 300.0)
            engine = {**ENGINE, **dict(connectors(LINK_GB_PER_S, ""))["NIXL"]["engine"], "prefill_instances": prefill}
            arms = [
                {"name": name, "strategy": name, "fleet": {"replicas": ENGINES, "engine": engine}}
                for name in ("adaptive_offload", "ppd", "priced")
            ]
            played.append((cell, f" on {prefill}P+{ENGINES - prefill}D", self.runs(cell, arms, 3)))
        yield from self._compared(played)

    def weights(self) -> Iterator[str]:
        arms: list[Any] = ["priced"]
        default = documents.parse(documents.default("priced"))
        for name, factor in product(WEIGHTS, (0.5, 2.0)):
            value = type(default[name])(default[name] * factor)
            arms.append({"name": f"{name} {value:g}", "strategy": "priced", "overrides": {name: value}})
        cells = (self.cell("conversation", 2.0, 600.0), self.cell("coding agent", 1.0, 600.0))
        yield from self._compared([(cell, "", self.runs(cell, arms, 5)) for cell in cells])

    def _compared(self, played: Sequence[tuple[Cell, str, Runs]]) -> Iterator[str]:
        for cell, where, runs in played:
            answers = f", answers {cell.answers:g} times as long" if cell.answers != 1.0 else ""
            yield from ("", f"**{cell.trace}, {cell.load:g}× load{answers}{where}**", "", *table(runs, COMPARED))
        yield from won([runs for _, _, runs in played])


TABLES = {"traffic": Player.traffic, "sessions": Player.sessions, "roles": Player.roles, "weights": Player.weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", type=int, help="instead of 3, or 5")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--traces", type=Path, default=os.environ.get("WEIR_TRACE_DIR"), metavar="FOLDER")
    options = parser.parse_args()
    names = options.tables.split(",")
    if unknown := [name for name in names if name not in TABLES]:
        parser.error(f"--tables {options.tables}: {', '.join(unknown)} is none of {', '.join(TABLES)}")
    if options.traces is None:
        parser.error("--traces: the folder of the recorded traces is needed (or WEIR_TRACE_DIR)")
    with ProcessPoolExecutor(options.processes) as pool:
        for name in names:
            for line in TABLES[name](Player(options, pool)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
