"""How often the twin chooses the fleet that measurements choose: the one of fewest GPUs that holds a limit on TPOT.

    .venv/bin/python -m bench.choices FILE.csv [--group TEXT] [--wrong]

FILE.csv: measured closed loops, read and played as in bench.profiles. A case is one kind of request, a number of
clients and a limit. The fleets are equal instances of every measured number of GPUs, among which the clients are
divided evenly; TPOT between two measured numbers of clients per instance is interpolated, in the twin between plays of
the same two. A choice is right if the measured TPOT holds the limit there and in no fleet of fewer GPUs. Left out are
cases in which fewer GPUs than the chosen ones were never measured to fail, and those whose limit no fleet holds.
`--wrong` lists the wrong choices.
"""

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean

from bench.profiles import Point, played, points
from fleet.counted import percent

CLIENTS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
LIMITS_MS = (8.0, 10.0, 12.5, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 75.0, 100.0)
MOST_INSTANCES = 16
Curve = Sequence[tuple[int, float, float]]  # clients of an instance, measured TPOT, the twin's, s


@dataclass(frozen=True, slots=True)
class MeasuredFleet:
    gpus: int
    text: str
    measured_s: float  # TPOT
    twin_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--group", default="")
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    groups, _ = points(csv.DictReader(options.file.read_text().splitlines()))
    print("group, cases, right, too few GPUs, too many")
    total = Counter[str]()
    for group in sorted(groups):
        if options.group not in group:
            continue
        found = Counter[str]()
        for verdict, text in judged(groups[group]):
            found[verdict] += 1
            if options.wrong and verdict != "right":
                print(f"  {text}: {verdict}")
        print(f"{group:34} {said(found)}", flush=True)
        total += found
    print(f"{'all':34} {said(total)}")


def said(found: Counter[str]) -> str:
    count = found.total()
    return f"{count:5} {percent(found['right'] / count, '.0f') if count else '':>5} {found['few']:5} {found['many']:5}"


def judged(measured: Sequence[Point]) -> Iterator[tuple[str, str]]:
    """Yield the verdict of each case of a group: right, few or many."""
    for (prompt, output), curves in curves_of(measured).items():
        for clients, limit_ms in product(CLIENTS, LIMITS_MS):
            fleets = list(fleets_of(curves, clients))
            verdict = verdict_of(fleets, limit_ms / 1e3)
            if verdict is not None:
                yield verdict[0], f"{prompt}+{output} tokens, {clients} clients, {limit_ms:g} ms: {verdict[1]}"


def curves_of(measured: Sequence[Point]) -> Mapping[tuple[int, int], Mapping[int, Curve]]:
    """Return the curves by number of GPUs, by lengths of the requests. Repeated measurements are averaged."""
    by_point = defaultdict[tuple[int, int, int, int], list[Point]](list)
    for one in measured:
        if one.ranks == 1:
            by_point[one.prompt, one.output, one.profile.tp, one.clients].append(one)
    curves = defaultdict[tuple[int, int], defaultdict[int, list[tuple[int, float, float]]]](lambda: defaultdict(list))
    for (prompt, output, gpus, clients), repeated in sorted(by_point.items(), key=lambda one: one[0]):
        twin_s = played(repeated[0])[1]
        curves[prompt, output][gpus].append((clients, fmean(one.tpot_s for one in repeated), twin_s))
    return curves


def fleets_of(curves: Mapping[int, Curve], clients: int) -> Iterator[MeasuredFleet]:
    for (gpus, curve), instances in product(curves.items(), range(1, MOST_INSTANCES + 1)):
        each = clients / instances
        for (few, *left), (many, *right) in pairwise(curve):
            if few <= each <= many:
                at = (each - few) / (many - few)
                measured_s, twin_s = (a + at * (b - a) for a, b in zip(left, right, strict=True))
                yield MeasuredFleet(instances * gpus, f"{instances} × {gpus} GPUs", measured_s, twin_s)
                break


def verdict_of(fleets: Sequence[MeasuredFleet], limit_s: float) -> tuple[str, str] | None:
    """Return the verdict and its reason; None where nothing is to be chosen."""
    best = min((one.gpus for one in fleets if one.measured_s <= limit_s), default=None)
    chosen = min((one for one in fleets if one.twin_s <= limit_s), key=lambda one: (one.gpus, one.twin_s), default=None)
    if best is None or all(one.gpus >= best for one in fleets):
        return None
    if chosen is None:
        return "many", f"no fleet instead of {best} GPUs"
    text = f"{chosen.text}, measured {1e3 * chosen.measured_s:.1f} ms; {best} GPUs hold it"
    if chosen.measured_s > limit_s:
        return "few", text
    return ("right" if chosen.gpus == best else "many"), text


if __name__ == "__main__":
    main()
