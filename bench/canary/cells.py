"""The judge's findings in a stream of requests, look by look."""

from collections.abc import Iterable, Iterator, Sequence

from controlplane.evidence.previews.analysis.tallies import EndedRequest, Tallies
from controlplane.traffic.deliveries.judge import verdicts
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.statistics import slow
from controlplane.traffic.deliveries.judge.statistics.slow import Limits
from controlplane.traffic.deliveries.judge.verdicts import judge
from controlplane.traffic.deliveries.plan.types import Plan

Looks = Iterator[tuple[float, tuple[GuardFinding, ...]]]


def looks(
    stream: Iterable[EndedRequest], plan: Plan, step: int, limits: Limits, every_s: float, since: float = 0.0
) -> Looks:
    """Return the looks at a canary: the step's clock, and the findings. `since`: start of the step."""
    tallies, due, share = Tallies(limits), every_s, plan.steps[step].share  # type: ignore[union-attr]

    def look() -> tuple[float, tuple[GuardFinding, ...]]:
        evidence = tallies.evidence()
        return due, verdicts.deferred(judge(evidence, plan, share), evidence, plan, step, share)

    for one in stream:
        while one.at_s - since >= due:
            yield look()
            due += every_s
        tallies.add(one)
    yield look()


def limits_of(requests: Sequence[EndedRequest]) -> Limits:
    """Return the times above which a request counts as slow."""
    return slow.limits((one.name, one.tokens, one.ttft_ms or 0.0) for one in requests)
