"""The plan of a delivery: its steps, guards and waits. Values only."""

import hashlib
import json
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from router.contract.values.reading import read_json

SCHEMA = 1
CLASSES = ("warm", "medium", "heavy")
OCCURS = 0.01  # smallest share of the requests with which a class is judged
RARE = 0.10  # share below which a canary does not wait for a class if a later step judges it

Comparison = Literal["ttft", "tpot", "slow"]
Count = Literal["errors", "refused"]
COMPARISONS = ("ttft", "tpot", "slow")  # metrics per class, candidate against control
NEEDED = ("ttft", "tpot")  # metrics that must be fine before a step passes; the others can only fail
COUNTS = ("errors", "refused")  # metrics per session, candidate against control
POOL_METRICS = {  # metrics of both arms together, compared with a limit
    "pool.ttft_p90_ms": "p90 of TTFT of the class, 60 s",
    "pool.ttft_p99_ms": "p99 of TTFT of the class, 60 s",
    "pool.tpot_p90_ms": "p90 of TPOT of the class, 60 s",
    "pool.errors_share": "failed requests ÷ all of the class but client errors, 60 s",
    "pool.refused_share": "refused requests ÷ all of the class but client errors, 60 s",
}
PROMETHEUS: Literal["prometheus"] = "prometheus"
METRICS = (*COMPARISONS, *COUNTS, *POOL_METRICS, PROMETHEUS)
# Variables in a query: $pool, …; the longest matching name is used
VARIABLES = ("pool", "policy", "candidate", "step_s")


class _Step(Struct, frozen=True, omit_defaults=True, tag_field="mode", tag=str.lower):
    @property
    def mode(self) -> str:
        return str(self.__struct_config__.tag)


class Shadow(_Step, frozen=True):
    """The candidate also decides these requests, but the live version's decision is used."""

    sample: float  # share of the requests, 0–1
    for_s: int


class Canary(_Step, frozen=True):
    share: float  # share of the requests, 0–1, by session
    for_s: int  # shortest duration
    max_s: int  # duration after which the delivery pauses
    then: Literal["", "ask"] = ""  # "ask" if a person has to let it advance


class Switchback(_Step, frozen=True):
    """The whole pool alternates between the live version and the candidate, in blocks of time whose order is drawn pair
    by pair."""

    block_s: int
    washout_s: int  # time that is left out at the start of each block
    pairs: int


class Full(_Step, frozen=True):
    bake_s: int  # time for which the candidate is watched after going live


Step = Shadow | Canary | Switchback | Full


class ComparisonGuard(Struct, frozen=True, omit_defaults=True):
    metric: Comparison
    classes: tuple[str, ...]
    worse: float  # the guard fails if the lower limit is above this; ttft, tpot: relative; slow: difference of shares
    fine: float | None = None  # the guard is fine if the upper limit is not above this; None for slow


class CountGuard(Struct, frozen=True):
    metric: Count
    ratio: float  # candidate's rate ÷ control's rate at which the guard fails


class PoolGuard(Struct, frozen=True):
    metric: str  # one of POOL_METRICS
    above: float
    for_s: int  # consecutive seconds
    does: Literal["pause", "abort"]
    request_class: str = field(name="class")


class PrometheusGuard(Struct, frozen=True):
    metric: Literal["prometheus"]
    query: str  # PromQL with one number as its result; may use VARIABLES
    limit: float
    fail_if: Literal["above", "below"]
    for_looks: int  # consecutive looks
    does: Literal["pause", "abort"]


Guard = ComparisonGuard | CountGuard | PoolGuard | PrometheusGuard


class Waits(Struct, frozen=True):
    no_data_s: int  # time without data after which the delivery pauses
    error_s: int  # longest hold for an error before the delivery pauses


class Approvals(Struct, frozen=True):
    needed: int
    expires_s: int


class Start(Struct, frozen=True):
    at: str  # local time: 2026-08-03T03:00
    zone: str  # time zone: Europe/Berlin
    latest_s: int  # delay after `at` beyond which the start is missed


class Plan(Struct, frozen=True, omit_defaults=True):
    schema: int
    pools: tuple[str, ...]
    steps: tuple[Step, ...]
    guards: tuple[Guard, ...]
    alpha: float
    hold: Waits
    approvals: Approvals
    start: Start | None = None

    @property
    def is_direct(self) -> bool:
        """Return whether the plan is a direct publication: `full` is the only step."""
        return len(self.steps) == 1 and isinstance(self.steps[0], Full)

    @property
    def least_s(self) -> int:
        """Return the shortest possible duration, in which no step waits for data or for a person."""
        return sum(
            2 * step.pairs * step.block_s
            if isinstance(step, Switchback)
            else step.bake_s
            if isinstance(step, Full)
            else step.for_s
            for step in self.steps
        )

    @property
    def from_shadow_on(self) -> bool:
        return isinstance(self.steps[0], Shadow) and any(isinstance(step, Canary) for step in self.steps)

    @property
    def pairs(self) -> int:
        """Return the number of pairs of blocks in the plan's switchback; 0 without one."""
        return next((step.pairs for step in self.steps if isinstance(step, Switchback)), 0)

    @property
    def canaries(self) -> int:
        return sum(isinstance(step, Canary) for step in self.steps)

    @property
    def canonical(self) -> dict[str, Any]:
        """Return the plan as JSON with every default filled in; `parse_plan` restores it."""
        return read_json(msgspec.json.encode(self), dict[str, Any])

    @property
    def sha256(self) -> str:
        """Return the digest of the canonical JSON: sorted keys, no blanks, ASCII."""
        text = json.dumps(self.canonical, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
