"""Cells of two arms as routers tally them, for streams of requests that no router served."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.judge.sums import Evidence
from controlplane.deliveries.judge.verdicts import judge
from controlplane.deliveries.plan import Plan
from router.contract.redis.delivery import CELLS, Arm, CellTally, Moments

Limits = dict[str, tuple[float, float, float]]  # by class: a, b, τ, as in the rollout


@dataclass(slots=True)
class Answered:
    """One request that has ended."""

    at_s: float
    candidate: bool
    cell: int
    session: str
    name: str  # of its class
    tokens: int
    ttft_ms: float | None
    tpot_ms: float | None = None
    outcome: str = "ok"


def arm_and_cell(salt: str, key: str, share: float) -> tuple[bool, int]:
    value = xxhash.xxh64_intdigest(f"{salt}{key}".encode())
    return (value >> 32) < share * 2**32, value % CELLS


class Tallies:
    """As a router adds them up."""

    def __init__(self, slow: Limits) -> None:
        self._slow = slow
        self._sums: dict[tuple[bool, str, int], list[float]] = defaultdict(lambda: [0.0] * 19)
        self._seen: set[tuple[str, str]] = set()  # (what, session)

    def add(self, one: Answered) -> None:
        sums, x = self._sums[one.candidate, one.name, one.cell], math.log(one.tokens)
        sums[0] += 1
        sums[17] += 1
        for at, value in ((1, one.ttft_ms), (7, one.tpot_ms)):
            if value:
                y = math.log(value)
                sums[at] += 1
                sums[at + 1] += y
                sums[at + 2] += y * y
                sums[at + 3] += x
                sums[at + 4] += x * x
                sums[at + 5] += x * y
        sums[13] += one.outcome == "error" and self._first("error", one)
        sums[14] += one.outcome == "refused" and self._first("refused", one)
        sums[16] += self._first("session", one)
        if one.ttft_ms:
            a, b, tau = self._slow[one.name]
            sums[15] += math.log(one.ttft_ms) > a + b * x + tau
        sums[18] += one.outcome == "error"

    def _first(self, what: str, one: Answered) -> bool:
        known = len(self._seen)
        self._seen.add((what, one.session))
        return len(self._seen) > known

    def evidence(self) -> Evidence:
        cells: dict[Arm, dict[str, dict[int, CellTally]]] = {"candidate": {}, "control": {}}
        for (candidate, name, cell), sums in self._sums.items():
            arm: Arm = "candidate" if candidate else "control"
            n, errors, refused, slow, sessions, ended, failed = map(int, (sums[0], *sums[13:19]))
            cells[arm].setdefault(name, {})[cell] = CellTally(
                n=n,
                ttft=Moments(int(sums[1]), *sums[2:7]),
                tpot=Moments(int(sums[7]), *sums[8:13]),
                errors=errors,
                refused=refused,
                slow=slow,
                sessions=sessions,
                streamed=n,
                ended=ended,
                failed=failed,
            )
        return Evidence(cells)


def looks(
    stream: Iterable[Answered], plan: Plan, share: float, slow: Limits, every_s: float
) -> Iterator[tuple[float, tuple[GuardFinding, ...]]]:
    """What the judge finds, look by look."""
    tallies, due = Tallies(slow), every_s
    for one in stream:
        while one.at_s >= due:
            yield due, judge(tallies.evidence(), plan, share)
            due += every_s
        tallies.add(one)
    yield due, judge(tallies.evidence(), plan, share)


def limits_of(requests: Sequence[Answered]) -> Limits:
    """a, b and τ of each class, from live's last requests."""
    from controlplane.deliveries.judge.slow import limits

    return limits([(one.name, one.tokens, one.ttft_ms) for one in requests if one.ttft_ms])
