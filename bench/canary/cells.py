"""What the judge finds in a stream of requests, look by look."""

from collections.abc import Iterable, Iterator, Sequence

from controlplane.deliveries.judge import slow
from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.judge.slow import Limits
from controlplane.deliveries.judge.verdicts import judge
from controlplane.deliveries.plan import Plan
from controlplane.previews.analysis.tallies import Answered, Tallies

Looks = Iterator[tuple[float, tuple[GuardFinding, ...]]]


def looks(stream: Iterable[Answered], plan: Plan, share: float, limits: Limits, every_s: float) -> Looks:
    """When, and the findings."""
    tallies, due = Tallies(limits), every_s
    for one in stream:
        while one.at_s >= due:
            yield due, judge(tallies.evidence(), plan, share)
            due += every_s
        tallies.add(one)
    yield due, judge(tallies.evidence(), plan, share)


def limits_of(requests: Sequence[Answered]) -> Limits:
    """From when on one of them would count as slow."""
    return slow.limits((one.name, one.tokens, one.ttft_ms or 0.0) for one in requests)
