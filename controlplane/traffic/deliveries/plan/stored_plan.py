"""Reads plans from the database. They were checked at the proposal, so reading converts them without checks. Pure. A
narrower limit must not make old or running deliveries unreadable. A stored plan keeps its text and the sha256 that
people have approved.
"""

from collections.abc import Mapping
from typing import Any

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
from router.contract.values.reading import read_value

StoredPlan = Mapping[str, Any]


def read(document: StoredPlan) -> Plan:
    return Plan(
        schema=SCHEMA,
        pools=tuple(document["pools"]),
        steps=read_value(document["steps"], tuple[Step, ...]),
        guards=tuple(_guard(each) for each in document["guards"]),
        alpha=document["alpha"],
        hold=read_value(document["hold"], Waits),
        approvals=read_value(document["approvals"], Approvals),
        start=read_value(document.get("start"), Start | None),
    )


def _guard(guard: StoredPlan) -> Guard:
    if guard["metric"] in COMPARISONS:
        return read_value(guard, ComparisonGuard)
    if guard["metric"] in COUNTS:
        return read_value(guard, CountGuard)
    if guard["metric"] == PROMETHEUS:
        return read_value(guard, PrometheusGuard)
    return read_value(guard, PoolGuard)
