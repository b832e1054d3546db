"""Parses the document of a plan: JSON in, `Plan` out, or InvalidInput with every problem. Pure."""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from controlplane.traffic.deliveries.plan.default import ALPHA, BAKE_S, DEFAULT_GUARDS, ERROR_S, EXPIRES_S, NO_DATA_S
from controlplane.traffic.deliveries.plan.reader import HOUR, NUMBERS, SHARE_MAX, Reader
from controlplane.traffic.deliveries.plan.types import (
    CLASSES,
    COUNTS,
    METRICS,
    NEEDED,
    POOL_METRICS,
    PROMETHEUS,
    SCHEMA,
    VARIABLES,
    Approvals,
    Canary,
    ComparisonGuard,
    CountGuard,
    Full,
    Guard,
    Plan,
    PoolGuard,
    PrometheusGuard,
    Shadow,
    Start,
    Step,
    Switchback,
    Waits,
)
from controlplane.traffic.deliveries.timing.schedules import is_local_time, is_zone
from router.contract.values.fields import number
from router.contract.values.problem import InvalidInput, Problem

STEPS_MAX, GUARDS_MAX = 20, 40
QUERY_MAX, QUERIES_MAX = 2_000, 10
MODES = ("shadow", "canary", "switchback", "full")


def parse_plan(value: object, *, pools: Sequence[str], approvals_needed: int = 0) -> Plan:
    """Parse a plan for a policy's pools, requiring at least `approvals_needed`. InvalidInput lists every problem."""
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
        raise InvalidInput("the plan is not valid", problems)
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
