"""Tallies simulated requests by arm, like routers (router/telemetry/delivery_tallies.py). Pure."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controlplane.evidence.twin.simulation.types import Simulated
from controlplane.traffic.deliveries.judge.statistics.slow import Limits
from controlplane.traffic.deliveries.judge.sums import Evidence
from router.contract.redis.delivery import Arm, CellCounts, CellTally
from router.pool.rollout import cell_of, hashed, is_candidate


@dataclass(slots=True)
class EndedRequest:
    """A request that has ended."""

    at_s: float
    candidate: bool
    cell: int
    session: str
    name: str  # name of its class
    tokens: int
    ttft_ms: float | None
    tpot_ms: float | None = None
    outcome: str = "ok"


def arm_and_cell(salt: str, session: str, share: float) -> tuple[bool, int]:
    key = hashed(salt, session)
    return is_candidate(key, share), cell_of(key)


def answered(requests: Sequence[Simulated], salt: str) -> Iterator[EndedRequest]:
    """Yield the requests in the order of their ends."""
    for request in sorted(requests, key=_ends_s):
        yield EndedRequest(
            at_s=_ends_s(request),
            candidate=request.candidate,
            cell=arm_and_cell(salt, request.key, 0.0)[1],
            session=request.key,
            name=request.arm_class,
            tokens=max(request.input_tokens, 1),
            ttft_ms=request.ttft_s * 1000 if request.ttft_s else None,
            tpot_ms=request.tpot_s * 1000 if request.tpot_s else None,
            outcome=request.outcome,
        )


def _ends_s(request: Simulated) -> float:
    return request.sent_s + (request.e2e_s or 0.0)


class Tallies:
    def __init__(self, slow: Limits) -> None:
        self._slow = slow
        self._cells: dict[tuple[Arm, str, int], CellCounts] = defaultdict(CellCounts)
        self._seen: set[tuple[str, str]] = set()  # (what, session)

    def add(self, request: EndedRequest) -> None:
        cell, x = (
            self._cells["candidate" if request.candidate else "control", request.name, request.cell],
            math.log(request.tokens),
        )
        cell.n += 1
        cell.streamed += 1
        cell.ended += 1
        cell.sessions += self._first("", request)
        for sums, ms in ((cell.ttft, request.ttft_ms), (cell.tpot, request.tpot_ms)):
            if ms:
                sums.add(ms, x)
        if request.outcome == "error":
            cell.failed += 1
            cell.errors += self._first("error", request)
        elif request.outcome == "refused":
            cell.turned_away += 1
            cell.refused += self._first("refused", request)
        elif request.outcome == "client_error":
            cell.client_errors += 1
        line = self._slow.get(request.name)
        if request.ttft_ms and line is not None:
            cell.slow += is_slow(request.ttft_ms, x, line)

    def _first(self, what: str, request: EndedRequest) -> bool:
        known = len(self._seen)
        self._seen.add((what, request.session))
        return len(self._seen) > known

    def evidence(self) -> Evidence:
        cells: dict[Arm, dict[str, dict[int, CellTally]]] = {"candidate": {}, "control": {}}
        for (arm, name, number), cell in self._cells.items():
            cells[arm].setdefault(name, {})[number] = cell.read()
        return Evidence(cells)


def is_slow(ttft_ms: float, log_tokens: float, line: tuple[float, float, float]) -> bool:
    a, b, tau = line
    return math.log(ttft_ms) > a + b * log_tokens + tau
