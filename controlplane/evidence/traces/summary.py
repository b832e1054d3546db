"""The summary of a trace: hits of an unbounded prefix cache, and the resulting class of each request."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest, TraceSummary

# Thresholds of the design of adaptive prefill offload, rather than of the default policy, so that stored results and
# summaries keep their meaning.
HEAVY_NEW_TOKENS = 20_000
WARM_HIT_SHARE = 0.5
WARM_NEW_TOKENS = 5_000


# A set of block ids as disjoint intervals: the prefix of a long session costs one lookup, not one for each block
MAX_INTERVALS = 100_000  # adding takes time proportional to this; the blocks of real traces are numbered densely


class TooFragmented(Exception):
    """The set has more than MAX_INTERVALS intervals."""


class BlockIntervals:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def matched(self, run: range) -> int:
        """Count the ids of `run` in the set, from the start of the run up to the first missing one."""
        place = bisect_right(self._starts, run.start) - 1
        if place < 0:
            return 0
        return max(0, min(run.stop, self._stops[place]) - run.start)

    def add(self, run: range) -> None:
        """Add every id of a run, joining the intervals that it touches."""
        if not run:
            return
        first = bisect_left(self._stops, run.start)
        last = bisect_right(self._starts, run.stop)
        start = min([run.start, *self._starts[first : first + 1]]) if first < last else run.start
        stop = max([run.stop, *self._stops[last - 1 : last]]) if first < last else run.stop
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        if len(self._starts) > MAX_INTERVALS:
            raise TooFragmented


def ideal_hits(requests: Iterable[TraceRequest]) -> list[int]:
    """Return, for each request in order, how many of its prompt tokens, in whole blocks, also occurred in earlier
    requests. Raise BadTrace if block numbers are too sparse."""
    seen = BlockIntervals()
    hits = []
    try:
        for request in requests:
            hits.append(min(_matched(request, seen) * request.block_tokens, request.input_tokens))
            for run in request.blocks:
                seen.add(run)
    except TooFragmented:
        allowed = f"blocks in at most {MAX_INTERVALS:,} separate ranges"
        raise BadTrace(0, "blocks", "too many gaps between the numbers", allowed) from None
    return hits


def _matched(request: TraceRequest, seen: BlockIntervals) -> int:
    matched = 0
    for run in request.blocks:
        here = seen.matched(run)
        matched += here
        if here < len(run):
            break
    return matched


def classify(input_tokens: int, hit_tokens: int) -> str:
    """Return the class by these thresholds. It is the same in every arm, so that arms compare the same requests."""
    new = input_tokens - hit_tokens
    if new >= HEAVY_NEW_TOKENS:
        return "heavy"
    if hit_tokens > WARM_HIT_SHARE * input_tokens or new < WARM_NEW_TOKENS:
        return "warm"
    return "medium"


def trace_classes(requests: Sequence[TraceRequest]) -> dict[int, str]:
    """Return the class by request index."""
    return {
        request.index: classify(request.input_tokens, hit)
        for request, hit in zip(requests, ideal_hits(requests), strict=True)
    }


def summary_of(trace: LoadedTrace) -> TraceSummary:
    """Summarise a file, including its unread parts. Raise BadTrace."""
    return replace(summarise(trace.requests), ignored=trace.ignored, left_out=trace.left_out)


def read(data: bytes) -> tuple[str, TraceSummary] | BadTrace:
    """Return (format, summary) of a file. An error is returned instead of raised, because it is passed on from another
    process."""
    try:
        trace = registry.read(data, seed=1)
        return trace.format, summary_of(trace)
    except BadTrace as error:
        return error


def summarise(requests: Sequence[TraceRequest]) -> TraceSummary:
    """Summarise at least one request. Raise BadTrace."""
    hits = ideal_hits(requests)
    new = [request.input_tokens - hit for request, hit in zip(requests, hits, strict=True)]
    tokens = sum(request.input_tokens for request in requests)
    return TraceSummary(
        requests=len(requests),
        sessions=len({request.session for request in requests if request.session}),
        duration_s=requests[-1].at_s - requests[0].at_s,
        mean_input_tokens=tokens / len(requests),
        mean_output_tokens=fmean(request.output_tokens for request in requests),
        ideal_hit_share=sum(hits) / tokens,
        heavy_share=sum(n >= HEAVY_NEW_TOKENS for n in new) / len(requests),
    )
