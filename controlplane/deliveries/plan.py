"""The plan of a delivery: JSON in, `Plan` out, or InvalidPlan with every problem. Pure."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from controlplane.deliveries.plan_reader import DAY, HOUR, NUMBERS, SHARE_MAX, Reader
from controlplane.deliveries.timing.schedules import is_local_time, is_zone
from router.contract.fields import number
from router.contract.problem import Problem

SCHEMA = 1
CLASSES = ("warm", "medium", "heavy")
STEPS_MAX, GUARDS_MAX = 20, 40
OCCURS = 0.01  # the least share of the requests with which a class is judged
RARE = 0.10  # share below which a canary does not wait for a class that a later step judges

Comparison = Literal["ttft", "tpot", "slow"]
Count = Literal["errors", "refused"]
COMPARISONS = ("ttft", "tpot", "slow")  # candidate against control, per class
NEEDED = ("ttft", "tpot")  # must be fine before a step passes; the others only fail
COUNTS = ("errors", "refused")  # candidate against control, per session
POOL_METRICS = {  # both arms against a limit
    "pool.ttft_p90_ms": "p90 of TTFT of the class, 60 s",
    "pool.ttft_p99_ms": "p99 of TTFT of the class, 60 s",
    "pool.tpot_p90_ms": "p90 of TPOT of the class, 60 s",
    "pool.errors_share": "failed requests ÷ all of the class, 60 s",
    "pool.refused_share": "refused requests ÷ all of the class, 60 s",
}


PROMETHEUS: Literal["prometheus"] = "prometheus"
VARIABLES = ("pool", "policy", "candidate", "step_s")  # of a query: $pool, …; the longest matching name wins
QUERY_MAX, QUERIES_MAX = 2_000, 10


class InvalidPlan(Exception):
    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("the plan is not valid")
        self.problems = tuple(problems)


class _Step(Struct, frozen=True, omit_defaults=True, tag_field="mode", tag=str.lower):
    @property
    def mode(self) -> str:
        return str(self.__struct_config__.tag)


class Shadow(_Step, frozen=True):
    """The candidate also decides these requests, but the decision of the live version is used."""

    sample: float  # 0–1 of the requests
    for_s: int


class Canary(_Step, frozen=True):
    share: float  # 0–1 of the requests, by session
    for_s: int  # at least
    max_s: int  # after it the delivery pauses
    then: Literal["", "ask"] = ""  # "ask": a person lets it advance


class Switchback(_Step, frozen=True):
    """The whole pool alternates between live and candidate, in blocks of time whose order is drawn pair by pair."""

    block_s: int
    washout_s: int  # left out at the start of each block
    pairs: int


class Full(_Step, frozen=True):
    bake_s: int  # watched, after it has gone live


Step = Shadow | Canary | Switchback | Full


class ComparisonGuard(Struct, frozen=True, omit_defaults=True):
    metric: Comparison
    classes: tuple[str, ...]
    worse: float  # fails when the lower bound is above; relative for ttft and tpot, a difference of shares for slow
    fine: float | None = None  # passes when the upper bound is not above; None for slow


class CountGuard(Struct, frozen=True):
    metric: Count
    ratio: float  # candidate's rate ÷ control's at which the guard fails


class PoolGuard(Struct, frozen=True):
    metric: str  # of POOL_METRICS
    above: float
    for_s: int  # in a row
    does: Literal["pause", "abort"]
    request_class: str = field(name="class")


class PrometheusGuard(Struct, frozen=True):
    metric: Literal["prometheus"]
    query: str  # PromQL with one number as its result; may use VARIABLES
    limit: float
    fail_if: Literal["above", "below"]
    for_looks: int  # in a row
    does: Literal["pause", "abort"]


Guard = ComparisonGuard | CountGuard | PoolGuard | PrometheusGuard


class Waits(Struct, frozen=True):
    no_data_s: int  # without data before the delivery pauses
    error_s: int  # of a hold before the delivery pauses


class Approvals(Struct, frozen=True):
    needed: int
    expires_s: int


class Start(Struct, frozen=True):
    at: str  # local: 2026-08-03T03:00
    zone: str  # Europe/Berlin
    latest_s: int  # after `at`, when the start is missed


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
        """A direct publication: `full` is the only step."""
        return len(self.steps) == 1 and isinstance(self.steps[0], Full)

    @property
    def least_s(self) -> int:
        """Its shortest duration: no step waits for data or a person."""
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
        """Pairs of blocks in its switchback; 0 without one."""
        return next((step.pairs for step in self.steps if isinstance(step, Switchback)), 0)

    @property
    def canaries(self) -> int:
        return sum(isinstance(step, Canary) for step in self.steps)


# Reading

MODES = ("shadow", "canary", "switchback", "full")
METRICS = (*COMPARISONS, *COUNTS, *POOL_METRICS, PROMETHEUS)
DEFAULT_GUARDS: tuple[Guard, ...] = (
    ComparisonGuard("ttft", CLASSES, worse=0.10, fine=0.25),
    ComparisonGuard("tpot", ("warm",), worse=0.10, fine=0.25),
    ComparisonGuard("slow", CLASSES, worse=0.05),
    CountGuard("errors", 1.5),
    CountGuard("refused", 1.5),
)
ALPHA, NO_DATA_S, ERROR_S, EXPIRES_S, BAKE_S = 0.01, 1800, 600, 7 * DAY, 1800


def parse(value: object, *, pools: Sequence[str], approvals_needed: int = 0) -> Plan:
    """`pools`, `approvals_needed`: the pools and the least approvals of the policy. InvalidPlan has every problem."""
    problems: list[Problem] = []
    top = Reader(value, "", "", problems)
    if top.take("schema") not in (None, SCHEMA):
        top.problem("schema", top.given["schema"], "not a known schema", str(SCHEMA))
    steps = tuple(_step(each, f"steps[{n}]", problems) for n, each in enumerate(top.listed("steps", STEPS_MAX)))
    guards = _guards(top, problems)
    hold = Reader(top.take("hold") if "hold" in top.given else {}, "hold", "hold", problems)
    approvals = Reader(top.take("approvals") if "approvals" in top.given else {}, "approvals", "approvals", problems)
    top.known |= {"hold", "approvals"}
    plan = Plan(
        schema=SCHEMA,
        pools=_pools(top, pools, steps),
        steps=steps,
        guards=guards,
        alpha=top.number("alpha", ALPHA),
        hold=Waits(int(hold.number("no_data_s", NO_DATA_S)), int(hold.number("error_s", ERROR_S))),
        approvals=Approvals(
            int(approvals.number("needed", approvals_needed)), int(approvals.number("expires_s", EXPIRES_S))
        ),
        start=_start(top, problems),
    )
    for reader in (hold, approvals, top):
        reader.end()
    if not problems:
        problems += _crossed(plan, approvals_needed)
    if problems:
        raise InvalidPlan(problems)
    return plan


def _pools(top: Reader, pools: Sequence[str], steps: Sequence[Step]) -> tuple[str, ...]:
    if not pools and "pools" not in top.given:
        top.known.add("pools")
        if steps and not isinstance(steps[0], Full):
            top.problem("pools", None, "no pool uses this policy: only a plan that is `full` alone makes sense")
        return ()
    if not pools and top.given.get("pools") == []:
        top.known.add("pools")
        return ()
    return tuple(sorted(top.names("pools", pools, pools)))


def _step(value: object, path: str, problems: list[Problem]) -> Step:
    before = len(problems)
    mode = Reader(value, path, "", problems)
    name = mode.choice("mode", MODES) if len(problems) == before else "full"
    if len(problems) > before:
        return Full(0)
    reader = Reader(value, path, name, problems)
    reader.known.add("mode")
    made = STEPS[name](reader)
    reader.end()
    return made


def _canary(reader: Reader) -> Step:
    share, for_s = reader.number("share"), int(reader.number("for_s"))
    max_s = int(reader.number("max_s", max(HOUR, 2 * for_s)))
    if max_s < for_s:
        reader.problem(
            "max_s", max_s, "must not be less than for_s", f"{for_s} to {number(NUMBERS['canary.max_s'].range[1])}"
        )
    return Canary(share, for_s, max_s, "ask" if reader.choice("then", ("", "ask"), "") == "ask" else "")


def _switchback(reader: Reader) -> Step:
    block_s, washout_s = int(reader.number("block_s")), int(reader.number("washout_s", 30))
    if washout_s * 2 > block_s:
        reader.problem("washout_s", washout_s, "must not be more than half of block_s", f"0 to {block_s // 2}")
    return Switchback(block_s, washout_s, int(reader.number("pairs")))


STEPS: dict[str, Callable[[Reader], Step]] = {
    "shadow": lambda reader: Shadow(reader.number("sample", 1.0), int(reader.number("for_s"))),
    "canary": _canary,
    "switchback": _switchback,
    "full": lambda reader: Full(int(reader.number("bake_s", BAKE_S))),
}


def _guards(top: Reader, problems: list[Problem]) -> tuple[Guard, ...]:
    given = top.listed("guards", GUARDS_MAX, (), low=0)
    if "guards" not in top.given:
        return DEFAULT_GUARDS
    made = [_guard(each, f"guards[{n}]", problems) for n, each in enumerate(given)]
    return tuple(guard for guard in made if guard is not None)


def _guard(value: object, path: str, problems: list[Problem]) -> Guard | None:
    before = len(problems)
    reader = Reader(value, path, "guard", problems)
    metric = reader.choice("metric", METRICS) if len(problems) == before else ""
    if len(problems) > before:
        return None
    made = _guard_of(metric, reader)
    reader.end()
    return made


def _guard_of(metric: str, reader: Reader) -> Guard:
    if metric in POOL_METRICS:
        request_class, above = reader.choice("class", CLASSES), reader.number("above")
        for_s, does = int(reader.number("for_s", 30)), reader.choice("does", ("pause", "abort"), "pause")
        return PoolGuard(metric, above, for_s, "abort" if does == "abort" else "pause", request_class)
    if metric == PROMETHEUS:
        return _prometheus(reader)
    if metric in COUNTS:
        return CountGuard("errors" if metric == "errors" else "refused", reader.number("ratio", 1.5))
    classes, worse = reader.names("classes", CLASSES, CLASSES), reader.number("worse")
    if metric == "slow":
        return ComparisonGuard("slow", classes, worse)
    return ComparisonGuard("ttft" if metric == "ttft" else "tpot", classes, worse, reader.number("fine"))


def _prometheus(reader: Reader) -> PrometheusGuard:
    query, limit = reader.text("query", QUERY_MAX), reader.number("limit")
    for name in re.findall(r"\$([a-z][a-z_]*)", query):
        if not name.startswith(VARIABLES):
            allowed = ", ".join(f"${each}" for each in VARIABLES)
            reader.problem("query", f"${name}", "not a variable of queries", allowed)
    below = reader.choice("fail_if", ("above", "below"), "above") == "below"
    for_looks, pause = int(reader.number("for_looks", 2)), reader.choice("does", ("abort", "pause"), "abort") == "pause"
    does: Literal["pause", "abort"] = "pause" if pause else "abort"
    return PrometheusGuard(PROMETHEUS, query, limit, "below" if below else "above", for_looks, does)


def _start(top: Reader, problems: list[Problem]) -> Start | None:
    if top.take("start") is None:
        return None
    reader = Reader(top.given["start"], "start", "start", problems)
    at, zone = reader.take("at"), reader.take("zone")
    if not is_local_time(at):
        reader.problem("at", at, "must be a local date and time", "such as 2026-08-03T03:00")
    if not is_zone(zone):
        reader.problem("zone", zone, "must be the name of a time zone", "such as Europe/Berlin or UTC")
    latest_s = int(reader.number("latest_s", HOUR))
    reader.end()
    return Start(str(at), str(zone), latest_s)


# Checks across fields


def _crossed(plan: Plan, approvals_needed: int) -> list[Problem]:
    problems = [*_order(plan.steps), *_twice(plan.guards)]
    if plan.approvals.needed < approvals_needed:
        message = "the policy asks for more approvals"
        problems.append(Problem("approvals.needed", plan.approvals.needed, message, f"{approvals_needed} to 10"))
    queries = sum(isinstance(guard, PrometheusGuard) for guard in plan.guards)
    if queries > QUERIES_MAX:
        problems.append(Problem("guards", queries, "too many queries at each look", f"{QUERIES_MAX} of prometheus"))
    judged = any(isinstance(guard, ComparisonGuard) and guard.metric in NEEDED for guard in plan.guards)
    if plan.canaries and not judged:
        message = "a canary passes when ttft or tpot is fine: at least one guard must look at them"
        problems.append(Problem("guards", len(plan.guards), message, "a guard of ttft or tpot"))
    return problems


def _order(steps: Sequence[Step]) -> list[Problem]:
    problems, share, canary = [], 0.0, False
    for n, step in enumerate(steps):
        path = f"steps[{n}]"
        if isinstance(step, Shadow) and any(not isinstance(before, Shadow) for before in steps[:n]):
            problems.append(Problem(f"{path}.mode", "shadow", "a shadow must come before every other step"))
        if isinstance(step, Canary):
            if step.share <= share:
                allowed = f"more than {share:g}, up to {SHARE_MAX:g}"
                problems.append(Problem(f"{path}.share", step.share, "the shares of canaries must grow", allowed))
            share, canary = max(share, step.share), True
        if isinstance(step, Switchback) and not canary:
            problems.append(Problem(f"{path}.mode", "switchback", "a switchback must come after a canary"))
        if isinstance(step, Switchback) and any(isinstance(before, Switchback) for before in steps[:n]):
            problems.append(Problem(f"{path}.mode", "switchback", "a plan has one switchback at most"))
        if isinstance(step, Full) and n < len(steps) - 1:
            problems.append(Problem(f"{path}.mode", "full", "full must be the last step"))
    return problems


def _twice(guards: Sequence[Guard]) -> list[Problem]:
    seen: set[tuple[str, str]] = set()
    problems = []
    for n, guard in enumerate(guards):
        for key in _judges(guard):
            if key in seen:
                message = "two guards watch the same metric and class"
                problems.append(Problem(f"guards[{n}]", " ".join(key).strip(), message))
            seen.add(key)
    return problems


def _judges(guard: Guard) -> list[tuple[str, str]]:
    if isinstance(guard, ComparisonGuard):
        return [(guard.metric, name) for name in guard.classes]
    if isinstance(guard, PrometheusGuard):
        return [(guard.metric, guard.query)]
    return [(guard.metric, guard.request_class if isinstance(guard, PoolGuard) else "")]


# Writing


def as_dict(plan: Plan) -> dict[str, Any]:
    """Canonical: every default filled in. `parse(as_dict(plan))` is the plan."""
    return msgspec.json.decode(msgspec.json.encode(plan), type=dict[str, Any])


def sha256(plan: Plan) -> str:
    """The SHA-256 of the canonical JSON: sorted keys, no blanks, ASCII."""
    text = json.dumps(as_dict(plan), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def default_plan(pools: Sequence[str], approvals_needed: int = 0, shares: Mapping[str, float] | None = None) -> Plan:
    """The plan that the page offers. `shares`: of the previewed requests, by class; its guards leave out rare classes.

    A rare class that is still judged adds a canary of half the requests, since smaller canaries do not wait for it.
    """
    shares = shares or {}
    classes = tuple(name for name in CLASSES if shares.get(name, 0.0) >= OCCURS) or CLASSES
    canaries = [Canary(0.05, 600, HOUR), Canary(0.25, 900, HOUR)]
    if any(OCCURS <= share < RARE for share in shares.values()):
        canaries.append(Canary(0.5, 600, HOUR))
    canaries[-1] = replace(canaries[-1], then="ask")
    return Plan(
        schema=SCHEMA,
        pools=tuple(sorted(pools)),
        steps=(Shadow(1.0, 600), *canaries, Full(BAKE_S)),
        guards=tuple(_of_classes(guard, classes) for guard in DEFAULT_GUARDS),
        alpha=ALPHA,
        hold=Waits(NO_DATA_S, ERROR_S),
        approvals=Approvals(approvals_needed, EXPIRES_S),
    )


def _of_classes(guard: Guard, classes: tuple[str, ...]) -> Guard:
    if not isinstance(guard, ComparisonGuard):
        return guard
    return replace(guard, classes=tuple(name for name in guard.classes if name in classes) or classes)
