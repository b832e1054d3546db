"""Converts the twin's outcomes to records like those of a replay. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from controlplane.evidence.experiments.results.records import Record, cached_by_place
from controlplane.evidence.twin.simulation.types import Simulated, TwinOutcome

STATUS = {"ok": 200, "client_error": 400, "error": 500, "refused": 503}  # the router's HTTP status by outcome


def records_of(outcome: TwinOutcome, *, trace_classes: Mapping[int, str], policy_version: int) -> list[Record]:
    return [_record(request, trace_classes[request.index], str(policy_version)) for request in outcome.requests]


def _record(request: Simulated, trace_class: str, policy_version: str) -> Record:
    answered = request.outcome == "ok"
    has_parts = answered and request.ttft_s is not None
    queue_ms, kv_ms, prefill_ms = _parts(request) if has_parts else (None, None, None)
    return Record(
        index=request.index,
        session=request.session,
        sent_s=round(request.sent_s, 4),
        late_wall_ms=0.0,
        input_tokens=request.input_tokens,
        ttft_ms=_ms(request.ttft_s) if answered else None,
        tpot_ms=_ms(request.tpot_s) if answered else None,
        e2e_ms=_ms(request.e2e_s) if answered else None,
        prompt_tokens=request.input_tokens if answered else None,
        cached_tokens=request.cached_tokens if answered else None,
        output_tokens=request.output_tokens if answered else None,
        instance=request.instance,
        routed_class=request.request_class,
        trace_class=trace_class,
        policy_version=policy_version,
        status=STATUS[request.outcome],
        outcome=request.outcome,
        error=request.code,
        queue_ms=queue_ms,
        kv_ms=kv_ms,
        prefill_ms=prefill_ms,
        **(cached_by_place(request.cached_from) if answered else {}),
    )


def _parts(request: Simulated) -> tuple[float | None, float | None, float | None]:
    computing_s = (request.ttft_s or 0.0) - request.waited_s - request.kv_s
    return _ms(request.waited_s), _ms(request.kv_s), _ms(max(0.0, computing_s))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def token_facts(outcome: TwinOutcome) -> dict[str, float]:
    """Return (mean time to the second token in ms, mean number of interruptions of an answer by other prompts, mean
    number of KV transfers)."""
    answered = [one for one in outcome.requests if one.outcome == "ok"]
    second = [one.second_s for one in answered if one.second_s is not None]
    facts = {"second_token_ms": round(fmean(second) * 1000, 3)} if second else {}
    if answered:
        facts["interruptions"] = round(fmean(one.interruptions for one in answered), 3)
        facts["transfers"] = round(fmean(one.transfers for one in answered), 3)
    return facts


KV_BUCKETS = 256


class InstanceKv(Struct, frozen=True):
    usage: list[float]  # means over intervals of equal length
    mean: float
    peak: float  # peak over single seconds


class KvOverTime(Struct, frozen=True):
    bucket_s: int
    instances: dict[str, InstanceKv]


def kv_over_time(outcome: TwinOutcome) -> KvOverTime:
    """Return the KV usage of each instance, in at most KV_BUCKETS intervals."""
    longest = max((len(use.kv_usage) for use in outcome.instances.values()), default=0)
    each_s = max(1, math.ceil(longest / KV_BUCKETS))
    used = {name: use.kv_usage for name, use in outcome.instances.items() if use.kv_usage}
    return KvOverTime(
        each_s,
        {
            name: InstanceKv(
                [round(fmean(part), 3) for part in _stretches(usage, each_s)],
                round(fmean(usage), 4),
                round(max(usage), 4),
            )
            for name, usage in used.items()
        },
    )


def _stretches(samples: Sequence[float], length: int) -> Iterator[Sequence[float]]:
    return (samples[start : start + length] for start in range(0, len(samples), length))


def kv_usage(outcome: TwinOutcome) -> dict[str, float]:
    """Return mean and peak share of the KV blocks over all seconds and instances, 0–1; empty without samples."""
    shares = [share for use in outcome.instances.values() for share in use.kv_usage]
    return {"mean": round(fmean(shares), 4), "peak": round(max(shares), 4)} if shares else {}
