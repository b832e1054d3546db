"""A trace with the hits of an unbounded prefix cache for each request; read in a separate process, without Django."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.summary import ideal_hits
from controlplane.evidence.traces.types import BadTrace, TraceRequest
from fleet.systems.offload import Classified


@dataclass(frozen=True)
class ClassifiedTrace:
    requests: list[Classified]
    rate: float  # requests/s


def read(data: bytes, count: int) -> ClassifiedTrace | BadTrace:
    """Read the first `count` requests of a file."""
    try:
        return classified(registry.read(data, seed=1).requests[:count])
    except BadTrace as error:
        return error


def classified(sent: Sequence[TraceRequest]) -> ClassifiedTrace:
    seen: set[str] = set()
    made = []
    for request, hit in zip(sent, ideal_hits(sent), strict=True):
        new = request.input_tokens - hit
        made.append(Classified(request.input_tokens, new, request.output_tokens, request.session in seen))
        if request.session:
            seen.add(request.session)
    span = max(sent[-1].at_s - sent[0].at_s, 1.0)
    return ClassifiedTrace(made, len(sent) / span)
