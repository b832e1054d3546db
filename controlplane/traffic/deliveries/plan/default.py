"""The plan that the page offers, and the defaults of omitted parts. Pure."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from controlplane.traffic.deliveries.plan.reader import DAY, HOUR
from controlplane.traffic.deliveries.plan.types import (
    CLASSES,
    OCCURS,
    RARE,
    SCHEMA,
    Approvals,
    Canary,
    ComparisonGuard,
    CountGuard,
    Full,
    Guard,
    Plan,
    Shadow,
    Waits,
)

DEFAULT_GUARDS: tuple[Guard, ...] = (
    ComparisonGuard("ttft", CLASSES, worse=0.10, fine=0.25),
    ComparisonGuard("tpot", ("warm",), worse=0.10, fine=0.25),
    ComparisonGuard("slow", CLASSES, worse=0.05),
    CountGuard("errors", 1.5),
    CountGuard("refused", 1.5),
)
ALPHA, NO_DATA_S, ERROR_S, EXPIRES_S, BAKE_S = 0.01, 1800, 600, 7 * DAY, 1800


def default_plan(pools: Sequence[str], approvals_needed: int = 0, shares: Mapping[str, float] | None = None) -> Plan:
    """Return the plan that the page offers. `shares` are the shares of the previewed requests by class; guards leave
    out rare classes. A rare class that is still judged adds a canary with half of the requests, because smaller
    canaries do not wait for it.
    """
    shares = shares or {}
    classes = tuple(name for name in CLASSES if shares.get(name, 0.0) >= OCCURS) or CLASSES
    canaries = [Canary(0.05, 600, HOUR), Canary(0.25, 900, HOUR)]
    if any(OCCURS <= share < RARE for share in shares.values()):
        canaries.append(Canary(0.5, 600, HOUR))
    canaries[-1] = replace(canaries[-1], then="ask")
    return Plan(
        schema=SCHEMA,
        pools=tuple(sorted(pools)),
        steps=(Shadow(1.0, 600), *canaries, Full(BAKE_S)),
        guards=tuple(_of_classes(guard, classes) for guard in DEFAULT_GUARDS),
        alpha=ALPHA,
        hold=Waits(NO_DATA_S, ERROR_S),
        approvals=Approvals(approvals_needed, EXPIRES_S),
    )


def _of_classes(guard: Guard, classes: tuple[str, ...]) -> Guard:
    if not isinstance(guard, ComparisonGuard):
        return guard
    return replace(guard, classes=tuple(name for name in guard.classes if name in classes) or classes)
