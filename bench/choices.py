"""How often the twin chooses the same fleet as measurements: the one of fewest GPUs that holds a limit on TPOT.

    .venv/bin/python -m bench.choices FILE.csv [--group TEXT] [--wrong] [--error 0.05]

FILE.csv: measured closed loops, read and played as in bench.profiles. A case is one kind of request, a number of
clients and a limit. The fleets are equal instances of every measured number of GPUs, among which the clients are
divided evenly; TPOT between two measured numbers of clients per instance is interpolated, in the twin between plays of
the same two. A choice is right if the measured TPOT holds the limit there and in no fleet of fewer GPUs. Left out are
cases in which fewer GPUs than the chosen ones were never measured to fail, and those whose limit no fleet holds.
Two readings count the twin's expected error: a choice is decided if engines that are so much slower or faster need as
many GPUs, else it lies within a range; with the error as a margin, the fleet for the slower engines is chosen.
`--wrong` lists the wrong choices.
"""

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean

from bench.profiles import Point, played, points
from controlplane.evidence.twin.expected_error import BUILT_IN
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


@dataclass(frozen=True, slots=True)
class ChosenFleet:
    case: str
    chosen: str
    gpus: int  # GPUs of the fleet that the twin chooses
    right: int  # number of GPUs of the smallest fleet that holds the limit by measurement
    least: int  # GPUs that the twin chooses if engines are faster by its expected error
    most: int  # if they are slower

    @property
    def is_decided(self) -> bool:
        return self.least == self.most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--group", default="")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--error", type=float, default=BUILT_IN["profile"]["tpot"], help="expected error of TPOT")
    options = parser.parse_args()
    groups, _ = points(csv.DictReader(options.file.read_text().splitlines()))
    print(
        "group, cases, right, too few GPUs, too many, GPUs off; decided, right of them, right ones within the range; "
        "right, too few, too many with a margin"
    )
    every = list[ChosenFleet]()
    for group in sorted(groups):
        if options.group not in group:
            continue
        found = list(judged(groups[group], options.error))
        for one in found if options.wrong else ():
            if one.gpus != one.right:
                print(f"  {one.case}: {one.chosen}; {one.right} GPUs hold it")
        print(f"{group:34} {said(found)}", flush=True)
        every += found
    print(f"{'all':34} {said(every)}")


def said(found: Sequence[ChosenFleet]) -> str:
    off = fmean(one.gpus / one.right - 1 for one in found) if found else 0
    decided = [one.gpus == one.right for one in found if one.is_decided]
    within = sum(one.least <= one.right <= one.most for one in found) / max(1, len(found))
    both = f"{len(decided):5} {percent(sum(decided) / max(1, len(decided)), '.0f'):>5} {percent(within, '.0f'):>5}"
    chosen, careful = (_right([(getattr(one, name), one.right) for one in found]) for name in ("gpus", "most"))
    return f"{len(found):5} {chosen} {percent(off, '+.0f'):>6} {both} {careful}"


def _right(chosen: Sequence[tuple[int, int]]) -> str:
    """Return the share of right choices, and the numbers of those with too few and with too many GPUs."""
    few, many = (sum(sign * gpus > sign * right for gpus, right in chosen) for sign in (-1, 1))
    return f"{percent(1 - (few + many) / max(1, len(chosen)), '.0f'):>5} {few:5} {many:5}"


def judged(measured: Sequence[Point], error: float) -> Iterator[ChosenFleet]:
    for (prompt, output), curves in curves_of(measured).items():
        for clients, limit_ms in product(CLIENTS, LIMITS_MS):
            fleets = list(fleets_of(curves, clients))
            case = f"{prompt}+{output} tokens, {clients} clients, {limit_ms:g} ms"
            chosen = chosen_of(fleets, limit_ms / 1e3, case, error)
            if chosen is not None:
                yield chosen


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


def chosen_of(fleets: Sequence[MeasuredFleet], limit_s: float, case: str, error: float) -> ChosenFleet | None:
    """Return None if there is nothing to choose: no measured fleet holds the limit, or the smallest does."""
    right = min((one.gpus for one in fleets if one.measured_s <= limit_s), default=None)
    if right is None or all(one.gpus >= right for one in fleets):
        return None
    none = MeasuredFleet(1 + max(one.gpus for one in fleets), "no fleet", math.inf, math.inf)
    least, chosen, most = (
        min((one for one in fleets if one.twin_s * by <= limit_s), key=lambda one: (one.gpus, one.twin_s), default=none)
        for by in (1 - error, 1, 1 + error)
    )
    text = f"{chosen.text}, measured {1e3 * chosen.measured_s:.1f} ms"
    return ChosenFleet(case, text, chosen.gpus, right, least.gpus, most.gpus)


if __name__ == "__main__":
    main()
