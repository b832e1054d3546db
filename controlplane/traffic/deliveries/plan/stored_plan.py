"""Reads plans from the database. They were checked at the proposal, so reading converts them without checks. Pure. A
narrower limit must not make old or running deliveries unreadable. A stored plan keeps its text and the sha256 that
people have approved.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from controlplane.traffic.deliveries.plan.types import (
    COMPARISONS,
    COUNTS,
    PROMETHEUS,
    SCHEMA,
    Approvals,
    ComparisonGuard,
    CountGuard,
    Guard,
    Plan,
    PoolGuard,
    PrometheusGuard,
    Start,
    Step,
    Waits,
)
from router.contract.values.prepared import prepared

StoredPlan = Mapping[str, Any]


def read(document: StoredPlan) -> Plan:
    return Plan(
        schema=SCHEMA,
        pools=tuple(document["pools"]),
        steps=msgspec.convert(document["steps"], prepared(tuple[Step, ...])),
        guards=tuple(_guard(each) for each in document["guards"]),
        alpha=document["alpha"],
        hold=msgspec.convert(document["hold"], prepared(Waits)),
        approvals=msgspec.convert(document["approvals"], prepared(Approvals)),
        start=msgspec.convert(document.get("start"), prepared(Start | None)),
    )


def _guard(guard: StoredPlan) -> Guard:
    if guard["metric"] in COMPARISONS:
        return msgspec.convert(guard, prepared(ComparisonGuard))
    if guard["metric"] in COUNTS:
        return msgspec.convert(guard, prepared(CountGuard))
    if guard["metric"] == PROMETHEUS:
        return msgspec.convert(guard, prepared(PrometheusGuard))
    return msgspec.convert(guard, prepared(PoolGuard))
