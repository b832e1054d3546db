"""The question of a plan: a load, its SLO, and the fleets to choose from. Pure."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from controlplane.evidence.plan.fleets import NotPlayable, PlayedFleet, played
from controlplane.evidence.plan.load import busy_s, least_instances, span_s
from controlplane.evidence.traces.summary import classify, ideal_hits
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.expected_error import ExpectedError
from controlplane.evidence.twin.fingerprint import source_sha256
from controlplane.evidence.twin.pool_engines import fleet_of, models_of
from fleet.counted import counted
from fleet.engine.engine_model import EngineModel
from fleet.engine.profiles import UnknownProfile, shared_layouts
from fleet.spec.fleet_spec import FleetSpec, PoolSpec
from router.policy.schema import document
from router.policy.types import ParsedPolicy

# Class → ttft_ms, tpot_ms, e2e_ms; "all" for classes without limits of their own
Slo = Mapping[str, Mapping[str, float]]
PARALLEL = (1, 2, 4, 8)  # GPUs per instance
FACTORS = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)  # factors on the smallest possible number of instances
SPLITS = (0.25, 0.5, 0.75)  # shares of instances that only prefill
POLICY_OF_SPLIT = "adaptive_offload"
PLANNED = 2_000  # requests that a plan plays; they take a minute or two
MOST_GPUS = 4_096
MOST_GB = 1_000_000.0
MOST_FLEETS = 2_000
FEW = 20  # a class with at most this many requests is not judged


@dataclass(frozen=True, slots=True)
class MeasuredEngines:
    """The engines of a calibrated pool, used instead of those in the catalogue."""

    pool: PoolSpec
    config_hash: str
    engine: EngineModel
    gpus: int  # GPUs per instance
    about: str  # when and where they were measured
    cautions: tuple[str, ...]
    expected: ExpectedError


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    model: str  # name in the catalogue of profiles
    gpu_hours: Mapping[str, float]  # dollars per hour, by GPU
    slo: Slo
    share: float  # share of each class's requests that must be within its limits, 0–1
    policies: Sequence[str]  # names of strategies
    most_gpus: int
    host_gb: Sequence[float] = (0.0,)  # host memory for KV per instance
    seed: int = 1
    measured: MeasuredEngines | None = None


@dataclass(frozen=True)
class PlanCandidate:
    pool: PoolSpec  # pool whose policy is a strategy
    gpus: int
    gpu_hour: float
    measured: MeasuredEngines | None = None

    @cached_property
    def fleet(self) -> PlayedFleet:
        one = self.measured
        if one is None:
            return played(self.pool, alone(self.pool, self.gpu_hour))
        twin = fleet_of(self.pool, dict.fromkeys(range(self.pool.replicas), one.engine))
        return PlayedFleet(self.pool, twin, one.about, one.cautions, one.expected, self.gpus, self.per_hour)

    @cached_property
    def policy(self) -> ParsedPolicy:
        return document.parse(document.default(self.pool.policy))

    @property
    def per_hour(self) -> float:
        return self.gpus * self.gpu_hour

    @property
    def shape(self) -> tuple[str, str]:
        """Return the properties shared by this fleet and fleets of other sizes."""
        options = {name: value for name, value in self.pool.engine.items() if name != "prefill_instances"}
        split = self.pool.engine.get("prefill_instances")
        part = f"{split / self.pool.replicas:.1f}" if isinstance(split, int) else ""
        return self.pool.policy, f"{sorted(options.items())} {part}"


@dataclass(frozen=True, slots=True)
class PlanSpace:
    candidates: tuple[PlanCandidate, ...]
    too_small: int  # number of fleets ruled out by closed forms
    left_out: tuple[str, ...]  # unknown layouts, with the reason


@dataclass(frozen=True, slots=True)
class PlanBound:
    """The least that a fleet must do: the smallest requests of each judged class, within this time."""

    parts: tuple[tuple[Sequence[TraceRequest], Sequence[int]], ...]  # (requests of a class, tokens cached for each)
    most_s: float  # from the first arrival to the last moment that the limits allow


def space_of(question: PlanQuestion, requests: Sequence[TraceRequest], pacing: str) -> PlanSpace:
    """Return the fleets that closed forms do not rule out, with at most the available GPUs. Raise NotPlayable."""
    found, reasons, too_small = list[PlanCandidate](), list[str](), 0
    bound = _bound(question, requests, pacing)
    longest = max(request.input_tokens + request.output_tokens for request in requests)
    for one in _layouts(question, reasons):
        if longest > one.engine.kv_tokens:
            reasons.append(f"{one.name}: a request of {longest:,} tokens does not fit")
            continue
        least, most = _least(question, one, bound), question.most_gpus // one.gpus
        too_small += min(least - 1, most) * len(question.policies)
        for replicas in _sizes(least, math.ceil(least_instances(one.engine, requests) / one.ranks), most):
            pools = _pools(question, one, replicas)
            found += (PlanCandidate(pool, replicas * one.gpus, one.gpu_hour, question.measured) for pool in pools)
    if len(found) > MOST_FLEETS:
        raise NotPlayable(
            f"{len(found):,} fleets to play (at most {MOST_FLEETS:,}): fewer GPUs, policies or sizes of KV"
        )
    return PlanSpace(tuple(found), too_small, tuple(reasons))


@dataclass(frozen=True)
class PlanLayout:
    name: str
    pool: PoolSpec
    engine: EngineModel  # the model of one rank
    gpus: int
    gpu_hour: float

    @cached_property
    def ranks(self) -> int:
        """Return the number of engines in an instance."""
        return len(fleet_of(self.pool, {0: self.engine}).instances)


def _layouts(question: PlanQuestion, unknown: list[str]) -> Iterator[PlanLayout]:
    """Yield the layouts to choose from; reasons for layouts without a profile are appended to `unknown`."""
    measured = question.measured
    if measured is not None:
        unknown.append("another GPU or layout, since only this one is measured")
        name, gpu_hour = f"pool {measured.pool.name}", next(iter(question.gpu_hours.values()))
        yield PlanLayout(name, measured.pool, measured.engine, measured.gpus, gpu_hour)
        return
    for gpu, gpu_hour in question.gpu_hours.items():
        sliced = [(tp, 1, False) for tp in PARALLEL]
        for tp, ranks, is_dealt in (*sliced, *shared_layouts(gpu, question.model)):
            options = _engine(question, gpu, tp, ranks, is_dealt=is_dealt)
            pool = PoolSpec("plan", question.model, "sim", 1, engine=options)
            name = f"{gpu}, {counted(tp * ranks, 'GPU')} an instance"
            try:
                engine = models_of(pool, [0])[0].engine
            except UnknownProfile as error:
                unknown.append(f"{name}: {error}")
            else:
                yield PlanLayout(name, pool, engine, tp * ranks, gpu_hour)


def alone(pool: PoolSpec, gpu_hour: float) -> FleetSpec:
    return FleetSpec("plan", (pool,), {"gpu_hour": gpu_hour})


def judged(slo: Slo, names: Iterable[str]) -> dict[str, Mapping[str, float]]:
    """Return the limits by class, without classes that have few requests. `names` has the class of each request."""
    counts = Counter(name for name in names if limits_of(slo, name))
    many = [name for name, count in counts.items() if count >= FEW] or counts
    return {name: limits_of(slo, name) for name in many}


def limits_of(slo: Slo, name: str) -> Mapping[str, float]:
    """Return the limits of a class; empty if it has none."""
    return slo.get(name, slo.get("all", {}))


def _bound(question: PlanQuestion, requests: Sequence[TraceRequest], pacing: str) -> PlanBound:
    """Return the bound. There is none in a closed loop, because its clients wait for slow answers. Raise
    NotPlayable."""
    hits = ideal_hits(requests)
    names = [classify(one.input_tokens, hit) for one, hit in zip(requests, hits, strict=True)]
    parts, allowed_s = [], math.inf if pacing == "closed_loop" else 0.0
    limited = judged(question.slo, names)
    if not limited:
        raise NotPlayable(
            f"the SLO has limits for {', '.join(question.slo)} (of the classes of the requests: "
            f"{', '.join(sorted(set(names)))}; or all)"
        )
    for judged_name, limits in limited.items():
        at = [at for at, name in enumerate(names) if name == judged_name]
        parts.append(([requests[one] for one in at], [hits[one] for one in at]))
        allowed_s = max(allowed_s, *(_allowed_s(limits, requests[one]) for one in at))
    return PlanBound(tuple(parts), span_s(requests) + allowed_s)


def _least(question: PlanQuestion, layout: PlanLayout, bound: PlanBound) -> int:
    """Return the number of instances below which the share cannot be within its limits, even if every prefix is
    cached."""
    if math.isinf(bound.most_s) or not bound.most_s:
        return 1
    total_s = sum(busy_s(layout.engine, *part, question.share) for part in bound.parts)
    return max(1, math.ceil(total_s / bound.most_s / layout.ranks))


def _allowed_s(limits: Mapping[str, float], request: TraceRequest) -> float:
    """Return the allowed time from the request's arrival to its end."""
    in_parts = limits.get("ttft_ms", math.inf) + limits.get("tpot_ms", math.inf) * request.output_tokens
    return min(in_parts, limits.get("e2e_ms", math.inf)) / 1000


def _engine(question: PlanQuestion, gpu: str, tp: int, ranks: int, *, is_dealt: bool) -> dict[str, object]:
    shared = ({"data_parallel_size": ranks} if ranks > 1 else {}) | ({"expert_parallel": True} if is_dealt else {})
    return {"gpu": gpu, "model_profile": question.model, "tp": tp, **shared}


def _sizes(least: int, usual: int, most: int) -> list[int]:
    """Return the numbers of instances to simulate. `usual` is the number that the work keeps busy."""
    if least > most:
        return []
    usual = max(least, usual)
    below = takewhile(lambda size: size < usual, (least << power for power in range(13)))
    return sorted({min(size, most) for size in (*below, *(math.ceil(usual * one) for one in FACTORS), usual + 1)})


def _pools(question: PlanQuestion, layout: PlanLayout, replicas: int) -> Iterator[PoolSpec]:
    pool = layout.pool
    if question.measured is not None:
        yield from (replace(pool, replicas=replicas, policy=policy) for policy in question.policies)
        return
    for policy in question.policies:
        for host_gb in question.host_gb:
            engine = {**pool.engine, **({"dram_gb": host_gb} if host_gb else {})}
            yield replace(pool, replicas=replicas, policy=policy, engine=engine)
    splits = SPLITS if layout.ranks == 1 else ()  # simulated ranks do not move KV
    for prefill in sorted({round(replicas * share) for share in splits} - {0, replicas}):
        engine = {**pool.engine, "kv": "nixl", "prefill_instances": prefill}
        yield replace(pool, replicas=replicas, policy=POLICY_OF_SPLIT, engine=engine)


def busiest(requests: Sequence[TraceRequest], count: int) -> list[TraceRequest]:
    """Return the `count` consecutive requests that arrive in the shortest time, as a trace that starts at 0 s."""
    start = busiest_from([one.at_s for one in requests], count)
    part = requests[start : start + count]
    return [replace(one, index=at, at_s=one.at_s - part[0].at_s) for at, one in enumerate(part)]


def busiest_from(times: Sequence[float], count: int) -> int:
    """Return the position of the first of the `count` consecutive times that lie closest together."""
    starts = range(0, max(0, len(times) - count) + 1, max(1, count // 4))
    return min(starts, key=lambda at: (times[min(len(times), at + count) - 1] - times[at], at)) if times else 0


def fingerprint(question: PlanQuestion, requests: Sequence[TraceRequest], pacing: str) -> str:
    """Return a hash of everything that determines the result; equal fingerprints mean equal results."""
    asked = repr((question, list(requests), pacing))
    return hashlib.sha256(f"{source_sha256()} {asked}".encode()).hexdigest()
