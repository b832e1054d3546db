"""The question of a plan: a load, its SLO, and the fleets to choose among. Pure."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.evidence.plan.load import busy_s, span_s
from controlplane.evidence.traces.summary import ideal_hits
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.fingerprint import source_sha256
from controlplane.evidence.twin.pool_engines import models_of
from fleet.counted import counted
from fleet.engine.engine_model import EngineModel
from fleet.engine.profiles import UnknownProfile
from fleet.spec.fleet_spec import FleetSpec, PoolSpec

Slo = Mapping[str, Mapping[str, float]]  # class → ttft_ms, tpot_ms, e2e_ms; "all" for classes without their own
PARALLEL = (1, 2, 4, 8)  # GPUs per instance
FACTORS = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)  # factors on the least number of instances
SPLITS = (0.25, 0.5, 0.75)  # share of instances that only prefill
POLICY_OF_SPLIT = "adaptive_offload"


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    model: str  # name in the catalogue of profiles
    gpu_hours: Mapping[str, float]  # dollars an hour by GPU
    slo: Slo
    share: float  # share of each class's requests that must be within its limits, 0–1
    policies: Sequence[str]  # names of strategies
    most_gpus: int
    host_gb: Sequence[float] = (0.0,)  # host memory for KV per instance
    seed: int = 1


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    pool: PoolSpec  # pool whose policy is a strategy
    gpus: int
    gpu_hour: float

    @property
    def per_hour(self) -> float:
        return self.gpus * self.gpu_hour

    @property
    def shape(self) -> tuple[str, str]:
        """The properties that it has in common with fleets of another size."""
        options = {name: value for name, value in self.pool.engine.items() if name != "prefill_instances"}
        split = self.pool.engine.get("prefill_instances")
        part = f"{split / self.pool.replicas:.1f}" if isinstance(split, int) else ""
        return self.pool.policy, f"{sorted(options.items())} {part}"


@dataclass(frozen=True, slots=True)
class PlanSpace:
    candidates: tuple[PlanCandidate, ...]
    too_small: int  # fleets left out by closed forms
    left_out: tuple[str, ...]  # unknown layouts, and why


def space_of(question: PlanQuestion, requests: Sequence[TraceRequest]) -> PlanSpace:
    """Return the fleets that closed forms do not exclude, with at most the available GPUs."""
    found, reasons, too_small = list[PlanCandidate](), list[str](), 0
    longest = max(request.input_tokens + request.output_tokens for request in requests)
    for gpu, gpu_hour in question.gpu_hours.items():
        for tp in PARALLEL:
            pool = PoolSpec("plan", question.model, "sim", 1, engine=_engine(question, gpu, tp))
            try:
                engine = models_of(pool, [0])[0].engine
            except UnknownProfile as error:
                reasons.append(f"{gpu}, {counted(tp, 'GPU')} an instance: {error}")
                continue
            if longest > engine.kv_tokens:
                reasons.append(f"{gpu}, {counted(tp, 'GPU')} an instance: a request of {longest:,} tokens does not fit")
                continue
            least = _least(question, engine, requests)
            most = question.most_gpus // tp
            too_small += min(least - 1, most) * len(question.policies)
            for replicas in _sizes(least, most):
                found += (PlanCandidate(one, replicas * tp, gpu_hour) for one in _pools(question, pool, replicas))
    return PlanSpace(tuple(found), too_small, tuple(reasons))


def _least(question: PlanQuestion, engine: EngineModel, requests: Sequence[TraceRequest]) -> int:
    """Return the instances below which the share cannot be within its limits: the work does not fit between the first
    arrival and the last moment that the limits allow, even if every prefix is found."""
    allowed_s = max((_allowed_s(one, request) for one in question.slo.values() for request in requests), default=0.0)
    most_s = span_s(requests) + allowed_s
    if math.isinf(most_s) or not most_s:
        return 1
    return max(1, math.ceil(busy_s(engine, requests, ideal_hits(requests), question.share) / most_s))


def _allowed_s(limits: Mapping[str, float], request: TraceRequest) -> float:
    """Return the allowed time from the request's arrival to its end."""
    in_parts = limits.get("ttft_ms", math.inf) + limits.get("tpot_ms", math.inf) * request.output_tokens
    return min(in_parts, limits.get("e2e_ms", math.inf)) / 1000


def _engine(question: PlanQuestion, gpu: str, tp: int) -> dict[str, object]:
    return {"gpu": gpu, "model_profile": question.model, "tp": tp}


def _sizes(least: int, most: int) -> list[int]:
    return sorted({size for factor in FACTORS for size in (math.ceil(least * factor), least + 1) if size <= most})


def _pools(question: PlanQuestion, pool: PoolSpec, replicas: int) -> Iterator[PoolSpec]:
    for policy in question.policies:
        for host_gb in question.host_gb:
            engine = {**pool.engine, **({"dram_gb": host_gb} if host_gb else {})}
            yield replace(pool, replicas=replicas, policy=policy, engine=engine)
    for prefill in sorted({round(replicas * share) for share in SPLITS} - {0, replicas}):
        engine = {**pool.engine, "kv": "nixl", "prefill_instances": prefill}
        yield replace(pool, replicas=replicas, policy=POLICY_OF_SPLIT, engine=engine)


def busiest(requests: Sequence[TraceRequest], count: int) -> list[TraceRequest]:
    """Return the `count` consecutive requests that come in the shortest time, as a trace that starts at 0 s."""
    if len(requests) <= count:
        part = list(requests)
    else:
        starts = range(0, len(requests) - count + 1, max(1, count // 4))
        start = min(starts, key=lambda at: (span_s(requests[at : at + count]), at))
        part = list(requests[start : start + count])
    return [replace(one, index=at, at_s=one.at_s - part[0].at_s) for at, one in enumerate(part)]


def fingerprint(question: PlanQuestion, requests: Sequence[TraceRequest], pacing: str) -> str:
    """Return a hash of everything that the answer follows from; the same fingerprint gives the same answer."""
    asked = repr((question, list(requests), pacing))
    return hashlib.sha256(f"{source_sha256()} {asked}".encode()).hexdigest()


def as_fleet(candidate: PlanCandidate) -> FleetSpec:
    return FleetSpec("plan", (candidate.pool,), {"gpu_hour": candidate.gpu_hour})
