"""Recorded requests in blocks of time, and the load in each. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.calibration.recorded import RecordedRequest

WARM_UP = 10  # measured requests at the beginning that do not count: what ran before them is unknown
SIZE = 100  # measured requests of a block
MOST = 6  # blocks that a fit uses
LEAST = 3
BESIDE = 60  # requests at most that are replayed before a block, from the first that is under way, and after it


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that count, between those that ran beside them."""

    requests: Sequence[RecordedRequest]
    begin: int  # of those that count
    end: int

    @property
    def counted(self) -> Sequence[RecordedRequest]:
        return self.requests[self.begin : self.end]

    @property
    def load(self) -> float:
        """Prompt tokens to compute and tokens to generate in a second."""
        counted = self.counted
        tokens = sum(one.prompt_tokens - one.cached_tokens + one.output_tokens for one in counted)
        return tokens / max(counted[-1].sent_s - counted[0].sent_s, 1e-9)


def blocks_of(requests: Sequence[RecordedRequest]) -> list[Block]:
    """By time; if there are more than MOST, the newest and others across the loads. Empty: too few are measured."""
    measured = [number for number, one in enumerate(requests) if one.ttft_s is not None][WARM_UP:]
    size = min(SIZE, len(measured) // LEAST)
    if not size:
        return []
    count = len(measured) // size
    cuts = [measured[len(measured) - size * left] for left in range(count, 0, -1)]
    found = [_block(requests, begin, end) for begin, end in zip(cuts, [*cuts[1:], measured[-1] + 1], strict=True)]
    return _across_loads(found)


def _block(requests: Sequence[RecordedRequest], begin: int, end: int) -> Block:
    from_s = requests[begin].sent_s
    until_s = max(one.sent_s + (one.e2e_s or 0.0) for one in requests[begin:end])
    earlier = range(max(0, begin - BESIDE), begin)
    first = next((number for number in earlier if _end_s(requests[number]) > from_s), begin)
    after = sum(one.sent_s < until_s for one in requests[end : end + BESIDE])
    return Block(requests[first : end + after], begin - first, end - first)


def _across_loads(blocks: list[Block]) -> list[Block]:
    if len(blocks) <= MOST:
        return blocks
    ranked = sorted(range(len(blocks) - 1), key=lambda at: blocks[at].load)
    step = (len(ranked) - 1) / (MOST - 2)
    chosen = {ranked[round(step * place)] for place in range(MOST - 1)}
    return [blocks[at] for at in sorted(chosen)] + blocks[-1:]


def _end_s(one: RecordedRequest) -> float:
    return one.sent_s + (one.e2e_s or 0.0)
