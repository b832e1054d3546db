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

StoredPlan = Mapping[str, Any]


def read(document: StoredPlan) -> Plan:
    return Plan(
        schema=SCHEMA,
        pools=tuple(document["pools"]),
        steps=msgspec.convert(document["steps"], tuple[Step, ...]),
        guards=tuple(_guard(each) for each in document["guards"]),
        alpha=document["alpha"],
        hold=msgspec.convert(document["hold"], Waits),
        approvals=msgspec.convert(document["approvals"], Approvals),
        start=msgspec.convert(document.get("start"), Start | None),
    )


def _guard(guard: StoredPlan) -> Guard:
    if guard["metric"] in COMPARISONS:
        return msgspec.convert(guard, ComparisonGuard)
    if guard["metric"] in COUNTS:
        return msgspec.convert(guard, CountGuard)
    if guard["metric"] == PROMETHEUS:
        return msgspec.convert(guard, PrometheusGuard)
    return msgspec.convert(guard, PoolGuard)
