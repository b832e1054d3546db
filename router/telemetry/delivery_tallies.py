"""The counts of one generation of a delivery, by arm, class and cell (router/contract/redis/delivery.py)."""

import math

from router.contract.api_paths import CLASSLESS
from router.contract.redis.delivery import Arm, CellCounts, CellTally, Moments, MomentSums, ShadowTally
from router.contract.redis.receipt import ShadowDecision
from router.pool.rollout import Assignment, SplitState
from router.request.call import Call

SESSIONS_KEPT = 100_000  # the oldest sessions are dropped and would count again
INSTANCES_KEPT = 20  # instances listed in the shadow counts
DIGITS = 6  # significant digits of a sum, so that 384 cells fit into 60 KB


class _Seen:
    """Counts each session once."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[int, None] = {}

    def is_new(self, assigned: Assignment) -> bool:
        """Return whether the session is new; a request without a session always is."""
        if not assigned.has_session:
            return True
        keys, key = self._keys, assigned.key
        if key in keys:
            return False
        keys[key] = None
        if len(keys) > SESSIONS_KEPT:
            del keys[next(iter(keys))]
        return True


class ShadowCounts:
    """Counts of decisions that the candidate repeated (shadow.py)."""

    def __init__(self) -> None:
        self.n = self.changed = self.refused_more = self.raised = 0
        self.to: dict[str, int] = {}
        self.live_to: dict[str, int] = {}
        self.cpu_s = 0.0

    def add(self, live_to: str, shadow: ShadowDecision, cpu_s: float) -> None:
        """Count a decision. `live_to` is the live version's instance; empty if it refused."""
        self.n += 1
        self.cpu_s += cpu_s
        self.raised += bool(shadow.error)
        self.changed += shadow.changed
        self.refused_more += shadow.refused and bool(live_to)
        if live_to:
            self.live_to[live_to] = self.live_to.get(live_to, 0) + 1
        if shadow.instance:
            self.to[shadow.instance] = self.to.get(shadow.instance, 0) + 1

    def read(self, sample: float) -> ShadowTally:
        listed = {*_most(self.to), *_most(self.live_to)}
        return ShadowTally(
            n=self.n,
            changed=self.changed,
            refused_more=self.refused_more,
            raised=self.raised,
            to={name: n for name, n in self.to.items() if name in listed},
            live_to={name: n for name, n in self.live_to.items() if name in listed},
            sample=sample,
            cpu_s=round(self.cpu_s, 6),
        )


class DeliveryTallies:
    """The tallies of one generation. Times are in seconds on the clock of `Call.started`."""

    def __init__(self, split: SplitState) -> None:
        self.split = split
        self.identity = split.identity
        self.written = 0  # number of writes
        self.shadow = ShadowCounts()
        self._cells: dict[tuple[Arm, str], dict[int, CellCounts]] = {}
        self._sessions, self._erred, self._refused = _Seen(), _Seen(), _Seen()
        self._under_way: dict[int, Call] = {}  # streams without content that have not ended, by object id
        self._slow: set[int] = set()  # requests already counted as slow
        self.unwritten = True  # True if changed since the last report

    def decided(self, call: Call, assigned: Assignment) -> None:
        """Note the call's first decision."""
        is_early = call.started < self.split.counts_from
        if is_early or call.api_path in CLASSLESS or (assigned.delivery, assigned.generation) != self.identity:
            return
        assigned.counted = self.unwritten = True
        assigned.log_tokens = math.log(max(call.prediction.prompt_tokens, 1))
        cell = self._cell(assigned)
        cell.n += 1
        cell.sessions += self._sessions.is_new(assigned)
        if call.request.prompt.stream:
            cell.streamed += 1
            self._under_way[id(call)] = call

    def close(self) -> None:
        """Close the generation: it decides no more requests, but some of its answers have not ended."""
        self._sessions = _Seen()

    def ended(self, call: Call, assigned: Assignment) -> None:
        if not assigned.counted or (assigned.delivery, assigned.generation) != self.identity:
            return
        self.unwritten = True
        outcome, cell = call.outcome, self._cell(assigned)
        cell.ended += 1
        if id(call) in self._under_way:
            self._look_at(call, assigned, outcome.e2e_ms if outcome.ttft_ms is None else outcome.ttft_ms)
            self._began(call, assigned, outcome.ttft_ms)
        if outcome.label == "ok":
            self._served(call, assigned, cell)
        elif outcome.label == "error":
            cell.failed += 1
            cell.errors += self._erred.is_new(assigned)
        elif outcome.label == "refused":
            cell.turned_away += 1
            cell.refused += self._refused.is_new(assigned)
        elif outcome.label == "client_error":
            cell.client_errors += 1

    def _served(self, call: Call, assigned: Assignment, cell: CellCounts) -> None:
        outcome, usage = call.outcome, call.outcome.usage
        if outcome.tpot_ms is not None:
            cell.tpot.add(outcome.tpot_ms, assigned.log_tokens)
        if usage is not None and usage.cached_tokens is not None:
            cell.cached_tokens += usage.cached_tokens
            cell.prompt_tokens += usage.prompt_tokens or 0

    def look(self, now: float) -> None:
        """Count first contents, because answers may take minutes to end, and requests that have waited too long."""
        for number, call in list(self._under_way.items()):
            outcome, assigned = call.outcome, call.assigned
            if assigned is None:
                del self._under_way[number]
                continue
            first = outcome.first_content if outcome.begun else None
            self._look_at(call, assigned, ((now if first is None else first) - call.started) * 1000)
            if first is not None:
                self._began(call, assigned, (first - call.started) * 1000 if outcome.streamed else None)

    def _began(self, call: Call, assigned: Assignment, ttft_ms: float | None) -> None:
        """Count the first content, or the end of a request without content, whatever its result."""
        self._under_way.pop(id(call), None)
        self._slow.discard(id(call))
        if ttft_ms is not None:
            self._cell(assigned).ttft.add(ttft_ms, assigned.log_tokens)
            self.unwritten = True

    def _look_at(self, call: Call, assigned: Assignment, waited_ms: float) -> None:
        line = self.split.rollout.slow.get(assigned.request_class)
        if line is None or id(call) in self._slow:
            return
        if waited_ms > math.exp(line[0] + line[1] * assigned.log_tokens + line[2]):
            self._slow.add(id(call))
            self._cell(assigned).slow += 1
            self.unwritten = True

    def _cell(self, assigned: Assignment) -> CellCounts:
        cells = self._cells.get((assigned.arm, assigned.request_class))
        if cells is None:
            cells = self._cells[assigned.arm, assigned.request_class] = {}
        cell = cells.get(assigned.cell)
        if cell is None:
            cell = cells[assigned.cell] = CellCounts()
        return cell

    def requests(self) -> dict[tuple[Arm, str], int]:
        """Return the numbers of requests by arm and class."""
        return {key: sum(cell.n for cell in cells.values()) for key, cells in self._cells.items()}

    def read(self, arm: Arm, request_class: str) -> dict[int, CellTally]:
        return {number: cell.read(_short_moments) for number, cell in self._cells[arm, request_class].items()}


def _most(counts: dict[str, int]) -> list[str]:
    return sorted(counts, key=counts.__getitem__, reverse=True)[:INSTANCES_KEPT]


def _short_moments(sums: MomentSums) -> Moments:
    short = _short
    return Moments(sums.n, short(sums.y), short(sums.yy), short(sums.x), short(sums.xx), short(sums.xy))


def _short(value: float) -> float:
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded  # without .0
