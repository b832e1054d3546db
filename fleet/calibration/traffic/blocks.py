"""Recorded requests, divided into blocks of time, with the load of each. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.calibration.traffic.recorded import RecordedRequest

WARM_UP = 10  # measured requests at the beginning that do not count, because the load before them is unknown
SIZE = 100  # measured requests per block
MOST = 6  # largest number of blocks that a fit uses
LEAST = 3
RUN_UPS = 2  # run-up rounds before a block: requests in progress at its start, then those in progress before them
BESIDE = 300  # limit of requests in each run-up, and after a block


@dataclass(frozen=True, slots=True)
class RequestBlock:
    """Requests that count, replayed between others; the fields are indexes into `recorded`."""

    recorded: Sequence[RecordedRequest]
    first: int  # first request replayed
    begin: int  # first request that counts
    end: int
    last: int  # end of the replayed requests, exclusive

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.last

    @property
    def requests(self) -> Sequence[RecordedRequest]:
        return self.recorded[self.first : self.last]

    @property
    def counted(self) -> Sequence[RecordedRequest]:
        return self.recorded[self.begin : self.end]

    @property
    def load(self) -> float:
        """Return the prompt tokens to compute plus the tokens to generate, per second."""
        counted = self.counted
        tokens = sum(one.prompt_tokens - one.cached_tokens + one.output_tokens for one in counted)
        return tokens / max(counted[-1].sent_s - counted[0].sent_s, 1e-9)


def blocks_of(requests: Sequence[RecordedRequest]) -> list[RequestBlock]:
    """Divide the requests into blocks by time. If there are more than MOST, return the newest block and others from the
    whole range of loads. Empty if too few requests are measured."""
    measured = [number for number, one in enumerate(requests) if one.ttft_s is not None][WARM_UP:]
    size = min(SIZE, len(measured) // LEAST)
    if not size:
        return []
    count = len(measured) // size
    cuts = [measured[len(measured) - size * left] for left in range(count, 0, -1)]
    found = [_block(requests, begin, end) for begin, end in zip(cuts, [*cuts[1:], measured[-1] + 1], strict=True)]
    return _across_loads(found)


def _block(requests: Sequence[RecordedRequest], begin: int, end: int) -> RequestBlock:
    first = begin
    for _ in range(RUN_UPS):
        first = _under_way(requests, first)
    until_s = max(_end_s(one) for one in requests[begin:end])
    after = sum(one.sent_s < until_s for one in requests[end : end + BESIDE])
    return RequestBlock(requests, first, begin, end, end + after)


def _under_way(requests: Sequence[RecordedRequest], at: int) -> int:
    """Return the first request that has not been answered when request `at` is sent."""
    earlier = range(max(0, at - BESIDE), at)
    return next((number for number in earlier if _end_s(requests[number]) > requests[at].sent_s), at)


def joined(blocks: Sequence[RequestBlock]) -> list[RequestBlock]:
    """Return the blocks by time; blocks whose requests overlap share one span, which is replayed once."""
    spans: list[tuple[int, int]] = []
    for block in blocks:
        if spans and block.first <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], block.last)
        else:
            spans.append(block.span)
    return [
        replace(block, first=first, last=last)
        for block in blocks
        for first, last in spans
        if first <= block.begin and block.end <= last
    ]


def _across_loads(blocks: list[RequestBlock]) -> list[RequestBlock]:
    if len(blocks) <= MOST:
        return blocks
    ranked = sorted(range(len(blocks) - 1), key=lambda at: blocks[at].load)
    step = (len(ranked) - 1) / (MOST - 2)
    chosen = {ranked[round(step * place)] for place in range(MOST - 1)}
    return [blocks[at] for at in sorted(chosen)] + blocks[-1:]


def _end_s(one: RecordedRequest) -> float:
    return one.sent_s + (one.e2e_s or 0.0)
