"""Generated requests, as routers would tally them."""

import math
import random
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any

from controlplane.traffic.deliveries.judge.sums import Evidence
from router.contract.redis.delivery import Arm, CellTally, DeliveryTally, Moments

CLASSES = {"warm": (3_000, 120.0, 12.0), "medium": (8_000, 700.0, 14.0), "heavy": (30_000, 2_500.0, 20.0)}
SLOW = 1.6  # factor over the usual TTFT
Cells = dict[Arm, dict[str, dict[int, CellTally]]]


def cells(
    requests: int = 6_000,
    share: float = 0.1,
    *,
    seed: int = 1,
    factors: Mapping[str, float] | None = None,
    tpot: float = 1.0,
    errors: tuple[float, float] = (0.004, 0.004),
    turns: int = 2,
    mix: tuple[float, float, float] = (0.5, 0.35, 0.15),
) -> Cells:
    """`factors` multiply the candidate's TTFT by class; `errors` are the shares of sessions with errors, candidate
    and control."""
    given = tuple(sorted((factors or {}).items()))
    return {arm: {**of_arm} for arm, of_arm in _cells(requests, share, seed, given, tpot, errors, turns, mix).items()}


@cache
def _cells(
    requests: int,
    share: float,
    seed: int,
    factors: tuple[tuple[str, float], ...],
    tpot: float,
    errors: tuple[float, float],
    turns: int,
    mix: tuple[float, float, float],
) -> Cells:
    factor_of = dict(factors)
    draw = random.Random(seed)
    sums: dict[tuple[Arm, str, int], list[float]] = defaultdict(lambda: [0.0] * 18)
    for _ in range(requests // turns):
        arm: Arm = "candidate" if draw.random() < share else "control"
        cell, effect, failing = draw.randrange(64), draw.gauss(0, 0.15), draw.random() < errors[arm == "control"]
        for turn in range(turns):
            name = draw.choices(list(CLASSES), mix)[0]
            _add(
                sums[arm, name, cell],
                name,
                effect,
                draw,
                factor_of.get(name, 1.0) if arm == "candidate" else 1.0,
                tpot if arm == "candidate" else 1,
            )
            sums[arm, name, cell][16] += turn == 0
            sums[arm, name, cell][13] += failing and turn == 0
            sums[arm, name, cell][17] += failing and turn == 0
    found: Cells = {"candidate": {}, "control": {}}
    for (arm, name, cell), row in sorted(sums.items()):
        found[arm].setdefault(name, {})[cell] = _tally(row)
    return found


def _add(row: list[float], name: str, effect: float, draw: random.Random, factor: float, tpot: float) -> None:
    tokens, ttft_ms, tpot_ms = CLASSES[name]
    longer = draw.gauss(0, 0.4)
    x = math.log(tokens) + longer
    late = effect + draw.gauss(0, 0.3) + math.log(factor)
    for at, y in ((1, math.log(ttft_ms) + longer + late), (7, math.log(tpot_ms * tpot) + draw.gauss(0, 0.15))):
        for place, value in enumerate((1, y, y * y, x, x * x, x * y)):
            row[at + place] += value
    row[0] += 1
    row[15] += late > math.log(SLOW)


def _tally(row: list[float]) -> CellTally:
    n = int(row[0])
    return CellTally(
        n=n,
        ttft=Moments(int(row[1]), *row[2:7]),
        tpot=Moments(int(row[7]), *row[8:13]),
        errors=int(row[13]),
        slow=int(row[15]),
        sessions=int(row[16]),
        streamed=n,
        ended=n,
        failed=int(row[17]),
    )


def evidence(*args: Any, **options: Any) -> Evidence:
    return Evidence(cells(*args, **options))


def tally(counted: Cells, **changes: Any) -> DeliveryTally:
    given: dict[str, Any] = {
        "delivery": 1,
        "generation": 1,
        "pool": "demo",
        "router": "r1",
        "life": "a",
        "at": 0.0,
        "written": 1,
        "cells": counted,
    }
    return DeliveryTally(**{**given, **changes})
