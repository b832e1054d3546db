"""Plays a trace on a fleet under several policies to show what users would have experienced. Pure; simulated. A file
without prefixes is played twice: once as if no prompts had a common beginning, once as if all had. The truth is in
between, so a difference shown by both simulations is real.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.evidence.experiments.results.statistics.stats import quantile_of
from controlplane.evidence.plan.fleets import NotPlayable, PlayedFleet
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.summary import trace_classes
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest
from controlplane.evidence.twin.simulation.chains import prompts_of
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import Simulated, TwinOutcome
from fleet.systems.prices import per_million
from router.policy.types import CLASSES, ParsedPolicy

CONTEXT_TOKENS = 131_072  # window of an engine that does not state one
AS_IN_FILE, NOTHING_SHARED, ALL_SHARED = "as in the file", "no prompt shares a prefix", "every prompt shares its prefix"


@dataclass(frozen=True, slots=True)
class ReplayArm:
    name: str
    policy: ParsedPolicy
    is_weir: bool  # True for Weir's own policies and given ones; False for another router's


@dataclass(frozen=True, slots=True)
class Felt:
    """The experience of one class of users; times in s, None without an answer."""

    n: int
    unanswered: int
    ttft_p50: float | None
    ttft_p90: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    tpot_p90: float | None
    e2e_p50: float | None
    e2e_p90: float | None
    cached: float  # cached share of prompt tokens, 0–1
    within: float | None  # share within the pool's TTFT limit, 0–1; None without a limit


@dataclass(frozen=True, slots=True)
class ArmResult:
    arm: ReplayArm
    prefixes: str  # AS_IN_FILE, or an assumption about prefixes
    classes: Mapping[str, Felt]  # "all" first
    per_million: float | None  # dollars per million output tokens
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    fleet: PlayedFleet
    trace: LoadedTrace  # trace as played
    given: int  # requests of the file
    fitting: int  # requests that fit the engines
    window: int  # largest number of tokens of prompt and answer that an engine accepts
    results: tuple[ArmResult, ...]


def replay(
    fleet: PlayedFleet,
    trace: LoadedTrace,
    arms: Sequence[ReplayArm],
    *,
    most: int,
    seed: int,
    on_arm: Callable[[str], None] = lambda name: None,
) -> Replayed:
    """Play the first `most` requests that fit the engines under each arm. Raise NotPlayable if none fits."""
    window = min(one.window or min(CONTEXT_TOKENS, one.kv_tokens) for one in fleet.twin.instances.values())
    fitting = registry.window(trace.requests, float("inf"), window)
    kept = fitting[:most]
    if not kept:
        raise NotPlayable(f"no request of the trace fits the engines: at most {window:,} tokens of prompt and answer")
    part = replace(trace, requests=tuple(replace(one, index=at) for at, one in enumerate(kept)))
    results = []
    for prefixes, requests in _assumed(part.requests):
        classes, prompts = trace_classes(requests), prompts_of(requests)
        for arm in arms:
            on_arm(arm.name)
            outcome = simulate(fleet.twin, arm.policy, requests, pacing=trace.pacing, seed=seed, prompts=prompts)
            results.append(_result(fleet, arm, prefixes, outcome, classes))
    return Replayed(fleet, part, len(trace.requests), len(fitting), window, tuple(results))


def _assumed(requests: Sequence[TraceRequest]) -> Iterator[tuple[str, Sequence[TraceRequest]]]:
    if any(request.blocks for request in requests):
        yield AS_IN_FILE, requests
        return
    yield NOTHING_SHARED, requests
    yield ALL_SHARED, [replace(one, blocks=(range(-(-one.input_tokens // one.block_tokens)),)) for one in requests]


def _result(
    fleet: PlayedFleet, arm: ReplayArm, prefixes: str, outcome: TwinOutcome, classes: Mapping[int, str]
) -> ArmResult:
    limits = fleet.ttft_limits_ms
    by_class = {name: [one for one in outcome.requests if classes[one.index] == name] for name in CLASSES}
    felt = {"all": _felt(outcome.requests, limits, classes)}
    felt |= {name: _felt(found, limits, classes) for name, found in by_class.items() if found}
    tokens = sum(one.output_tokens for one in outcome.requests if one.outcome == "ok")
    rate = tokens / outcome.virtual_s if outcome.virtual_s else 0.0
    cost = per_million(fleet.per_hour, rate) if fleet.per_hour is not None else None
    return ArmResult(arm, prefixes, felt, cost, outcome.doubts)


def _felt(requests: Sequence[Simulated], limits: Mapping[str, float], classes: Mapping[int, str]) -> Felt:
    answered = [one for one in requests if one.outcome == "ok"]
    ttft, tpot, e2e = (
        sorted(value for one in answered if (value := getattr(one, name)) is not None)
        for name in ("ttft_s", "tpot_s", "e2e_s")
    )
    tokens = sum(one.input_tokens for one in answered)
    judged = [one for one in requests if classes[one.index] in limits]
    held = sum(one.ttft_s is not None and one.ttft_s * 1000 <= limits[classes[one.index]] for one in judged)
    return Felt(
        n=len(requests),
        unanswered=len(requests) - len(answered),
        ttft_p50=quantile_of(ttft, 0.5),
        ttft_p90=quantile_of(ttft, 0.9),
        ttft_p99=quantile_of(ttft, 0.99),
        tpot_p50=quantile_of(tpot, 0.5),
        tpot_p90=quantile_of(tpot, 0.9),
        e2e_p50=quantile_of(e2e, 0.5),
        e2e_p90=quantile_of(e2e, 0.9),
        cached=sum(one.cached_tokens for one in answered) / tokens if tokens else 0.0,
        within=held / len(judged) if judged else None,
    )
