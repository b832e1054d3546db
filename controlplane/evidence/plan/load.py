"""Closed forms for a load on an engine: bounds that need no simulation. Pure."""

import math
from collections.abc import Sequence

from controlplane.evidence.traces.summary import ideal_hits
from controlplane.evidence.traces.types import TraceRequest
from fleet.engine.engine_model import EngineModel
from fleet.engine.law import chunk_pairs


def busy_s(engine: EngineModel, requests: Sequence[TraceRequest], hits: Sequence[int], share: float = 1.0) -> float:
    """Return the shortest time for which one engine is busy with this share of the requests, counting only the smallest
    requests and their arithmetic."""
    law, works = engine.law, list[float]()
    for request, hit in zip(requests, hits, strict=True):
        new, output = request.input_tokens - hit, request.output_tokens
        context = request.input_tokens + output / 2
        work_s = (law.compute_s_per_token + law.allreduce_s_per_token) * (new + output)
        work_s += law.attention_s_per_pair * chunk_pairs(new, hit)
        work_s += output * (law.kv_s_per_token * context + law.decode_s)
        works.append(work_s)
    return sum(sorted(works)[: math.ceil(share * len(works))])


def span_s(requests: Sequence[TraceRequest]) -> float:
    return requests[-1].at_s - requests[0].at_s if requests else 0.0


def least_instances(engine: EngineModel, requests: Sequence[TraceRequest], most_busy: float = 1.0) -> int:
    """Return the number of instances below which each is busy for more than this share of the time, even if every
    prefix is cached."""
    span = span_s(requests)
    if not span:
        return 1
    return max(1, math.ceil(busy_s(engine, requests, ideal_hits(requests)) / span / most_busy))
