"""One run of a finding: a trace at a load with an arm and a seed in the twin; and the mean of several runs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.sessions import KINDS as KINDS_OF_SESSIONS
from bench.sessions import generate as sessions_of
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.traces.documents import generate as documents_reread
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.generated import Turn, design, generate, session_turns
from controlplane.evidence.traces.summary import trace_classes
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import Simulated, SimulatedUse, TwinFleet, TwinOutcome
from controlplane.traffic.deliveries.judge.statistics import student
from fleet.engine.tiers.model import TierStats
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch
from fleet.kinds.options.option import build
from router.policy.schema import document as documents

ENGINES = 8
ENGINE = {"gpu": "h100_sxm", "model_profile": "Qwen3-32B", "tp": 2}
WINDOW = 131_072  # tokens; longer requests are left out
SLO_TTFT_S, SLO_TPOT_S = 5.0, 0.1
TRACES = {
    "conversation": "conversation_trace.jsonl",
    "coding agent": "coding_agent_trace.jsonl",
    "Azure code": "azure_code_2023.csv",
}
GENERATED = "generated sessions"
DEMO = "agentic-demo"
DESIGN = "agentic-design"
DOCUMENTS = "documents-reread"
PAUSING, LONGER = "agentic-demo with longer pauses", 20  # times the demo's


@dataclass(frozen=True)
class Cell:
    """One comparison: the same requests for every arm."""

    trace: str
    load: float
    window_s: float
    folder: str  # folder of the traces; empty for generated ones
    answers: float = 1.0  # factor on the length of the trace's answers


@dataclass(frozen=True)
class Played:
    """The requests of one run, in the order of the trace; infinite: not answered."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    e2e: tuple[float, ...]
    within: tuple[bool, ...]
    cached: float  # share of the prompt tokens
    refused: int
    waits: float  # share of the TTFT spent in queues or waiting for KV
    fullest_kv: float  # mean KV usage of the fullest quarter of the instances, 0–1
    output_per_s: float = 0.0  # tokens per second
    waits_for_kv: float = 0.0  # share of the TTFT, part of `waits`
    middle_kv: float = 0.0  # like `fullest_kv`, without the first and the last quarter of the arrivals
    peak_kv: float = 0.0  # highest sample of the same instances
    classes: tuple[str, ...] = ()  # class of each request by an unbounded prefix cache: the same in every arm
    drive_bytes: float = 0.0  # bytes written to drives by all instances
    virtual_s: float = 0.0
    interruptions: float = 0.0  # steps with another's prefill between two tokens of an answer, per 1,000 tokens
    beside: float = 0.0  # mean number of answers generated at a time on an answer's instance, including itself


def named(arm: Any) -> dict[str, Any]:
    return {"name": arm, "strategy": arm} if isinstance(arm, str) else dict(arm)


def fleet_of(arm: Mapping[str, Any]) -> TwinFleet:
    changes = arm.get("fleet", {})
    kind, replicas = KINDS["sim"], changes.get("replicas", ENGINES)
    spec = build(kind.spec, {**ENGINE, **changes.get("engine", {})})
    assert kind.twin_model is not None
    models = [
        kind.twin_model(spec, Launch(f"e-{i}", "model", "127.0.0.1", dict.fromkeys(kind.ports, 0), "python", i))
        for i in range(replicas)
    ]
    engines = {f"e-{i}": model.engine for i, model in enumerate(models)}
    moves = models[0].engine.transfers
    if "store" not in changes or moves is None:
        return TwinFleet(engines)
    store = KINDS["sim-store"]
    assert store.twin_store is not None
    return TwinFleet(engines, store.twin_store(build(store.spec, changes["store"]), moves.bytes_per_token))


@cache
def requests_of(cell: Cell, seed: int) -> tuple[list[TraceRequest], str]:
    """Return (requests in the window at the load, pacing)."""
    trace: LoadedTrace
    if cell.trace == GENERATED:
        trace = generate(seed, cell.window_s, every_s=2.0)
    elif cell.trace == DEMO:
        trace = generate(seed, cell.window_s)
    elif cell.trace == PAUSING:
        trace = generate(seed, cell.window_s, every_s=3.0, turns=_pausing)
    elif cell.trace == DESIGN:
        trace = design(seed, cell.window_s)
    elif cell.trace == DOCUMENTS:
        trace = documents_reread(seed, cell.window_s)
    elif cell.trace in KINDS_OF_SESSIONS:
        trace = LoadedTrace(cell.trace, sessions_of(cell.trace, seed, cell.window_s), "closed_loop")
    else:
        trace = registry.read((Path(cell.folder) / TRACES[cell.trace]).read_bytes(), seed)
    requests = trace.requests
    if cell.answers != 1.0:
        requests = tuple(
            replace(one, output_tokens=max(1, round(one.output_tokens * cell.answers))) for one in requests
        )
    return registry.faster(registry.window(requests, cell.window_s, WINDOW), cell.load), trace.pacing


def _pausing(seed: int, number: int) -> Iterator[Turn]:
    return (replace(turn, think_s=LONGER * turn.think_s) for turn in session_turns(seed, number))


def play(cell: Cell, arm: Mapping[str, Any], seed: int) -> Played:
    requests, pacing = requests_of(cell, seed)
    policy = documents.apply_overrides(documents.default(arm["strategy"]), arm.get("overrides", {}))
    outcome = simulate(fleet_of(arm), documents.parse(policy), requests, pacing=pacing, seed=seed)
    found, kv = outcome.requests, _kv_of_fullest(outcome)
    classes = trace_classes(requests)
    ok = [one for one in found if one.outcome == "ok"]
    ttft = sum(one.ttft_s or 0.0 for one in ok)
    return Played(
        tuple(_late(one, one.ttft_s) for one in found),
        tuple(_late(one, one.tpot_s or 0.0) for one in found),
        tuple(_late(one, one.e2e_s) for one in found),
        tuple(_within(one) for one in found),
        sum(one.cached_tokens for one in ok) / max(1, sum(one.input_tokens for one in ok)),
        len(found) - len(ok),
        sum(one.kv_s + one.waited_s for one in ok) / ttft if ttft else 0.0,
        kv.mean,
        sum(one.output_tokens for one in ok) / outcome.virtual_s,
        sum(one.kv_s for one in ok) / ttft if ttft else 0.0,
        kv.middle,
        kv.peak,
        tuple(classes[one.index] for one in found),
        sum(tier.written_bytes for use in outcome.instances.values() for tier in _drives(use)),
        outcome.virtual_s,
        1000 * sum(one.interruptions for one in ok) / max(1, sum(one.output_tokens for one in ok)),
        _beside(ok),
    )


def _beside(ok: Sequence[Simulated]) -> float:
    """Return the mean number of answers generated at the same time on an answer's instance."""
    open_s = beside_s = 0.0
    for instance in {one.instance for one in ok}:
        written = [one for one in ok if one.instance == instance]
        changes = sorted(
            (one.sent_s + at, by) for one in written for at, by in ((one.ttft_s or 0, 1), (one.e2e_s or 0, -1))
        )
        number = 0
        for (since, by), (until, _) in pairwise(changes):
            number += by
            open_s += number * (until - since)
            beside_s += number**2 * (until - since)
    return beside_s / open_s if open_s else 0.0


@dataclass(frozen=True)
class KvUsage:
    """KV usage, 0–1, of the fullest quarter of the instances."""

    mean: float
    middle: float
    peak: float


def _kv_of_fullest(outcome: TwinOutcome) -> KvUsage:
    usage = sorted((use.kv_usage or (0.0,) for use in outcome.instances.values()), key=fmean)
    fullest = usage[-max(1, len(usage) // 4) :]
    last_s = max((one.sent_s for one in outcome.requests), default=0.0)
    middle = [each[int(last_s / 4) : int(3 * last_s / 4) + 1] or each for each in fullest]
    return KvUsage(fmean(map(fmean, fullest)), fmean(map(fmean, middle)), max(map(max, fullest)))


def _drives(use: SimulatedUse) -> list[TierStats]:
    return [tier for tier in use.tiers.tiers if tier.wears] if use.tiers is not None else []


def _late(one: Simulated, value: float | None) -> float:
    return value if one.outcome == "ok" and value is not None else math.inf


def _within(one: Simulated) -> bool:
    answered = one.outcome == "ok" and one.ttft_s is not None
    return answered and (one.ttft_s or 0.0) <= SLO_TTFT_S and (one.tpot_s or 0.0) <= SLO_TPOT_S


METRICS: dict[str, Callable[[Played], float]] = {
    "ttft_p90": lambda one: stats.quantile(sorted(one.ttft), 0.9),
    "e2e_p50": lambda one: stats.quantile(sorted(one.e2e), 0.5),
    "tpot_p50": lambda one: 1000 * stats.quantile(sorted(one.tpot), 0.5),
    "cached": lambda one: 100 * one.cached,
    "goodput": lambda one: 100 * sum(one.within) / max(1, len(one.within)),
    "refused": lambda one: float(one.refused),
}
BETTER_IS_MORE = ("cached", "goodput")
UNMARKED = ("cached", "refused")  # a split that transfers every prompt has 100 % and saves nothing
TITLES = {
    "ttft_p90": "TTFT p90, s",
    "e2e_p50": "E2E p50, s",
    "tpot_p50": "TPOT p50, ms",
    "cached": "cached or transferred, %",
    "goodput": "within SLO, %",
    "refused": "refused",
}
Runs = Mapping[str, Sequence[Played]]  # runs by arm, seed by seed


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return (mean, half the 95 % interval by Student's t over the seeds)."""
    n, middle = len(values), fmean(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return middle, math.nan
    deviation = math.sqrt(sum((value - middle) ** 2 for value in values) / (n - 1))
    return middle, student.quantile((1 + stats.CONFIDENCE) / 2, n - 1) * deviation / math.sqrt(n)
