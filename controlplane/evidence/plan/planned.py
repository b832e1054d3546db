"""The result of a plan: as JSON, as Markdown, and a row as a draft of the fleet document with its diff. Pure."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from controlplane.evidence.plan.question import PlanQuestion, alone
from controlplane.evidence.plan.search import HEADROOM, PlanAnswer, PlanRow, plan
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.expected_error import described
from fleet.counted import counted
from fleet.spec import document, masking
from fleet.spec.fleet_spec import FleetSpec, PoolSpec, dump_fleet

HEAD = ("row", "$ an hour", "GPUs", "fleet", "policy", "within", "if slower", *(f"×{at:g}" for at in HEADROOM[1:]))
Answer = Mapping[str, Any]  # as_json
Row = Mapping[str, Any]
Asked = tuple[PlanQuestion, list[TraceRequest], str]  # the last: pacing


def compute(asked: Asked, send: Callable[[tuple[int, int]], None]) -> Answer:
    """Return the result; `send` is called with (simulations done, largest possible number)."""
    question, requests, pacing = asked
    return as_json(question, plan(question, requests, pacing, lambda *plays: send(plays)))


def as_json(question: PlanQuestion, answer: PlanAnswer) -> Answer:
    return {
        "simulated": True,
        "fingerprint": answer.fingerprint,
        "requests": answer.requests,
        "fleets": answer.fleets,
        "too_small": answer.too_small,
        "left_out": list(answer.left_out),
        "slo": {name: dict(limits) for name, limits in question.slo.items()},
        "share": question.share,
        "most_gpus": question.most_gpus,
        "measured": _measured(question),
        "holds": None if answer.holds is None else _row(answer.holds),
        "undecided": None if answer.undecided is None else _row(answer.undecided),
        "rows": [_row(row) for row in answer.rows],
    }


def _measured(question: PlanQuestion) -> dict[str, str] | None:
    one = question.measured
    return None if one is None else {"pool": one.pool.name, "config_hash": one.config_hash, "about": one.about}


def markdown(answer: Answer) -> str:
    slo = answer["slo"].items()
    limits = "; ".join(f"{'' if name == 'all' else f'{name} '}{limits_text(given)}" for name, given in slo)
    parts = [
        "# The cheapest fleets for this load",
        f"Simulated: no engine was started. {counted(answer['requests'], 'request')}, the busiest in a row; "
        f"{counted(answer['fleets'], 'fleet')} compared, {answer['too_small']:,} left out as too small by their "
        "arithmetic.",
        f"SLO: {answer['share']:.0%} of the requests of each class within {limits}.",
        verdict(answer),
        "\n".join(_table(answer["rows"])),
        "“Within” is the least share of a class within its limits, over seeds; “if slower” the same should the engines "
        "be slower by the expected error; ×1.1 and the others are the load times so much, until it breaks the SLO. A "
        "row that another one beats in cost and in every share is not shown.",
        *(f"Row {at}: breaks first {row['breaks_first']}." for at, row in enumerate(answer["rows"], start=1)),
        *cautions(answer),
        f"Fingerprint of the inputs: {answer['fingerprint']}. The same inputs give the same answer.",
    ]
    return "\n\n".join(parts) + "\n"


def document_of(question: PlanQuestion, row: Row) -> str:
    """Return a fleet document with only the row's pool."""
    engine = row["engine"]
    pool = PoolSpec("plan", question.model, "sim", row["replicas"], row["policy"], engine=engine)
    return document.dump(dump_fleet(alone(pool, question.gpu_hours[engine["gpu"]])))


def draft(answer: Answer, row: Row, current: FleetSpec, name: str) -> tuple[str, str]:
    """Return (the fleet document in which the pool of that name matches the row, the difference from the current
    document without secrets). The pool has the plan's kind."""
    pools = tuple(_changed(pool, answer, row) if pool.name == name else pool for pool in current.pools)
    both = [dump_fleet(one) for one in (current, replace(current, pools=pools))]
    before, after = (document.dump(masking.shown(one)).splitlines(True) for one in both)
    return document.dump(both[1]), "".join(difflib.unified_diff(before, after, "fleet", "draft"))


def _changed(pool: PoolSpec, answer: Answer, row: Row) -> PoolSpec:
    """Return the pool with the row's size and engine, as simulated, and limits for its autoscaler; its policy is
    published, not declared here."""
    limits: dict[str, Any] = dict(pool.autoscale)
    if limits:
        limits["max"] = most_instances(answer, row)
        limits |= {"min": row["replicas"]} if limits.get("min", 1) > row["replicas"] else {}
    engine = pool.engine if answer.get("measured") else dict(row["engine"])
    return replace(pool, replicas=row["replicas"], engine=engine, autoscale=limits)


def most_instances(answer: Answer, row: Row) -> int:
    """Return the smallest number of instances like the row's that hold the SLO at the greatest load that any number
    holds.
    """
    alike = [one for one in answer["rows"] if _shape(one) == _shape(row)]
    for load in reversed(HEADROOM):
        holding = [one["replicas"] for one in alike if one["at_load"].get(f"{load:g}", 0) >= answer["share"]]
        if holding:
            return int(max(row["replicas"], min(holding)))
    return int(row["replicas"])


def _shape(row: Row) -> dict[str, object]:
    return {name: value for name, value in row["engine"].items() if name != "prefill_instances"}


def _row(row: PlanRow) -> Row:
    one = row.candidate
    return {
        "dollars_per_hour": one.per_hour,
        "gpus": one.gpus,
        "replicas": one.pool.replicas,
        "engine": dict(one.pool.engine) if one.measured is None else {},  # a real pool's options may contain secrets
        "policy": one.pool.policy,
        "within": {"low": round(row.low, 6), "high": round(row.high, 6)},
        "if_slower": round(row.if_slower, 6),
        "at_load": {f"{load:g}": round(share, 6) for load, share in row.at_load.items()},
        "breaks_first": row.breaks_first,
        "predicted": dict(row.predicted),
        "expected_error": dict(one.fleet.expected),
        "cautions": [*one.fleet.cautions, *row.doubts],
    }


def verdict(answer: Answer) -> str:
    one, cheaper = answer["holds"], answer.get("undecided")  # missing in results of older versions
    undecided = "" if cheaper is None else f"undecided: {_priced_fleet(cheaper)}, holds it unless engines are slower"
    if one is None:
        least = f"the SLO for {answer['share']:.0%} of each class, with the expected error counted"
        nearest = "; these come nearest:" if answer["rows"] else ", by its arithmetic alone."
        none = f"No fleet of at most {counted(answer['most_gpus'], 'GPU')} holds {least}"
        return f"{none}{'; ' * bool(undecided)}{undecided}{nearest}"
    also = "also if the engines are slower by the expected error"
    return f"The cheapest fleet that holds the SLO, {also}: {_priced_fleet(one)}{'; ' * bool(undecided)}{undecided}."


def _priced_fleet(row: Row) -> str:
    return f"{fleet_text(row)}, {row['policy']}, ${row['dollars_per_hour']:,.2f} an hour"


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of HEAD after the first."""
    low, high = row["within"]["low"], row["within"]["high"]
    within = f"{low:.1%}" if low == high else f"{low:.1%} to {high:.1%}"
    shares = (row["at_load"].get(f"{load:g}") for load in HEADROOM[1:])
    loads = ("–" if share is None else f"{share:.1%}" for share in shares)
    about = (f"{row['dollars_per_hour']:,.2f}", f"{row['gpus']}", fleet_text(row), row["policy"], within)
    return *about, f"{row['if_slower']:.1%}", *loads


def _table(rows: list[Row]) -> Iterator[str]:
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for at, row in enumerate(rows, start=1):
        yield f"| {' | '.join((f'{at}', *cells(row)))} |"


def fleet_text(row: Row) -> str:
    engine = row["engine"]
    if not engine:
        return counted(row["replicas"], "instance")
    text = f"{row['replicas']} × {engine['gpu']}, TP{engine['tp']}"
    text += f", DP{engine['data_parallel_size']}" if "data_parallel_size" in engine else ""
    text += ", EP" if engine.get("expert_parallel") else ""
    if "prefill_instances" in engine:
        text += f", {engine['prefill_instances']} prefill"
    return f"{text}, {engine['dram_gb']:g} GB host KV" if "dram_gb" in engine else text


def limits_text(given: Mapping[str, float]) -> str:
    return ", ".join(f"{name.removesuffix('_ms').upper()} {value:g} ms" for name, value in given.items())


def cautions(answer: Answer) -> Iterator[str]:
    if measured := answer.get("measured"):
        yield f"The engines are those of the pool {measured['pool']}, {measured['about']}."
    yield from dict.fromkeys(f"Expected error: {described(row['expected_error'])}." for row in answer["rows"])
    yield from (
        f"Caution: {text}." for text in dict.fromkeys(text for row in answer["rows"] for text in row["cautions"])
    )
    yield from (f"Not considered: {text}." for text in answer["left_out"])
