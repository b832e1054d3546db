"""The answer of a plan: Markdown, JSON, and a row as the draft of a fleet document with its diff. Pure."""

import difflib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from controlplane.evidence.plan.question import PlanQuestion, as_fleet
from controlplane.evidence.plan.search import HEADROOM, PlanAnswer, PlanRow
from controlplane.evidence.twin.expected_error import described
from fleet.counted import counted
from fleet.spec import document
from fleet.spec.fleet_spec import FleetSpec, PoolSpec, dump_fleet

HEAD = ("row", "$ an hour", "GPUs", "fleet", "policy", "within", "if slower", *(f"×{at:g}" for at in HEADROOM[1:]))


def markdown(question: PlanQuestion, answer: PlanAnswer) -> str:
    limits = "; ".join(f"{'' if name == 'all' else f'{name} '}{_limits(given)}" for name, given in question.slo.items())
    parts = [
        "# The cheapest fleets for this load",
        f"Simulated: no engine was started. {counted(answer.requests, 'request')}, the busiest in a row; "
        f"{counted(answer.fleets, 'fleet')} played, {answer.too_small:,} left out as too small by their arithmetic.",
        f"SLO: {question.share:.0%} of the requests of each class within {limits}.",
        _verdict(question, answer),
        "\n".join(_table(answer)),
        "“Within” is the least share of a class within its limits, over seeds; “if slower” the same should the engines "
        "be slower by the expected error; ×1.1 and the others are the load times so much. A row that another one beats "
        "in cost and in every share is not shown.",
        *(f"Row {at}: breaks first {row.breaks_first}." for at, row in enumerate(answer.rows, start=1)),
        *_cautions(answer),
        f"Fingerprint of the inputs: {answer.fingerprint}. The same inputs give the same answer.",
    ]
    return "\n\n".join(parts) + "\n"


def as_json(question: PlanQuestion, answer: PlanAnswer) -> dict[str, Any]:
    return {
        "simulated": True,
        "fingerprint": answer.fingerprint,
        "requests": answer.requests,
        "fleets": answer.fleets,
        "too_small": answer.too_small,
        "left_out": list(answer.left_out),
        "share": question.share,
        "holds": None if answer.holds is None else _row(answer.holds),
        "rows": [_row(row) for row in answer.rows],
    }


def draft(row: PlanRow, current: FleetSpec | None, name: str) -> tuple[str, str]:
    """Return (the fleet document in which the pool of that name is as in the row, the difference from the current
    one). The pool has the kind of the row."""
    if current is None:
        return document.dump(dump_fleet(as_fleet(row.candidate))), ""
    pools = tuple(_changed(pool, row.candidate.pool) if pool.name == name else pool for pool in current.pools)
    before, after = (document.dump(dump_fleet(one)) for one in (current, replace(current, pools=pools)))
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "fleet", "draft")
    return after, "".join(lines)


def _changed(pool: PoolSpec, planned: PoolSpec) -> PoolSpec:
    """Return the pool with the planned size and engine, as played; its policy is published, not declared."""
    return replace(pool, replicas=planned.replicas, engine=dict(planned.engine))


def _row(row: PlanRow) -> dict[str, Any]:
    one = row.candidate
    return {
        "dollars_per_hour": one.per_hour,
        "gpus": one.gpus,
        "replicas": one.pool.replicas,
        "engine": dict(one.pool.engine),
        "policy": one.pool.policy,
        "within": {"low": round(row.low, 6), "high": round(row.high, 6)},
        "if_slower": round(row.if_slower, 6),
        "at_load": {f"{load:g}": round(share, 6) for load, share in row.at_load.items()},
        "breaks_first": row.breaks_first,
        "expected_error": dict(row.fleet.expected),
        "cautions": [*row.fleet.cautions, *row.doubts],
    }


def _verdict(question: PlanQuestion, answer: PlanAnswer) -> str:
    if answer.holds is None:
        least = f"at least {question.share:.0%} with the expected error counted"
        nearest = "; these come nearest:" if answer.rows else ", by its arithmetic alone."
        return f"No fleet of at most {counted(question.most_gpus, 'GPU')} holds it {least}{nearest}"
    one = answer.holds.candidate
    fleet = f"{_fleet(one.pool)}, {one.pool.policy}, ${one.per_hour:,.2f} an hour"
    return f"The cheapest fleet that holds it, also if the engines are slower by the expected error: {fleet}."


def _table(answer: PlanAnswer) -> Iterator[str]:
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for at, row in enumerate(answer.rows, start=1):
        one = row.candidate
        within = f"{row.low:.1%}" if row.low == row.high else f"{row.low:.1%} to {row.high:.1%}"
        loads = (f"{row.at_load[load]:.1%}" for load in HEADROOM[1:])
        cells = (f"{at}", f"{one.per_hour:,.2f}", f"{one.gpus}", _fleet(one.pool), one.pool.policy, within)
        yield f"| {' | '.join((*cells, f'{row.if_slower:.1%}', *loads))} |"


def _fleet(pool: PoolSpec) -> str:
    engine = pool.engine
    text = f"{pool.replicas} × {engine['gpu']}, TP{engine['tp']}"
    if "prefill_instances" in engine:
        text += f", {engine['prefill_instances']} prefill"
    return f"{text}, {engine['dram_gb']:g} GB host KV" if "dram_gb" in engine else text


def _limits(given: Any) -> str:
    return ", ".join(f"{name.removesuffix('_ms').upper()} {value:g} ms" for name, value in given.items())


def _cautions(answer: PlanAnswer) -> Iterator[str]:
    yield from dict.fromkeys(f"Expected error: {described(row.fleet.expected)}." for row in answer.rows)
    cautions = dict.fromkeys(text for row in answer.rows for text in (*row.fleet.cautions, *row.doubts))
    yield from (f"Caution: {text}." for text in cautions)
    yield from (f"Not considered: {text}." for text in answer.left_out)
