"""The deviation of the twin from what routers measured for the same requests."""

from typing import Any

import pytest

from controlplane.evidence.previews.analysis.compute import compared
from controlplane.evidence.previews.tests.outcomes import refused, request
from controlplane.evidence.traces.types import MeasuredLatency, TraceRequest

LIVE = ("default", 3)


def played(index: int, **changes: Any) -> TraceRequest:
    """Measured latencies of 200 ms under the live version."""
    values = {"at": 1000.0 + index, "pool": "demo", "model": "m", "policy": "default", "version": 3}
    measured = MeasuredLatency(**values | {"ttft_ms": 200.0, "tpot_ms": None} | changes)
    return TraceRequest(index, float(index), "", 1000, 10, (), 512, 0.0, measured)


def simulated(count: int, ttft_s: float = 0.25):
    return [request(i, ttft_s=ttft_s) for i in range(count)]


def test_the_deviation_is_the_median_ratio_over_the_later_half():
    """In the first half the twin's caches are still filling."""
    requests = [played(i, ttft_ms=1.0 if i < 30 else 200.0) for i in range(60)]
    found = compared(requests, simulated(60), "demo", LIVE)
    assert found.versions == ()
    assert found.deviation == {
        "metric": "ttft_ms",
        "measured": 200.0,
        "twin": 250.0,
        "relative": 0.25,
        "n": 30,
        "since": 1030.0,
        "until": 1059.0,
    }


def test_decisions_of_another_version_are_left_out():
    requests = [played(i, version=3 if i % 2 else 2, ttft_ms=250.0 if i % 2 else 1.0) for i in range(80)]
    found = compared(requests, simulated(80), "demo", LIVE)
    assert (found.deviation["relative"], found.deviation["n"], found.versions) == (0.0, 20, ())


def test_if_the_live_version_decided_too_few_requests_all_count_and_their_versions_are_reported():
    requests = [played(i, version=2) for i in range(79)] + [played(79)]
    found = compared(requests, simulated(80), "demo", LIVE)
    assert (found.deviation["n"], found.versions) == (40, (("default", 2), ("default", 3)))


@pytest.mark.parametrize("changes", [{"ttft_ms": None}, {"ttft_ms": 0.0}, {"pool": "other"}])
def test_without_measurements_of_the_pool_there_is_no_deviation(changes):
    assert compared([played(i, **changes) for i in range(80)], simulated(80), "demo", LIVE).deviation is None


def test_few_measurements_give_no_deviation():
    assert compared([played(i) for i in range(39)], simulated(39), "demo", LIVE).deviation is not None
    assert compared([played(i) for i in range(38)], simulated(38), "demo", LIVE).deviation is None


def test_requests_refused_in_the_twin_are_not_compared():
    requests = [played(i) for i in range(60)]
    found = compared(requests, [*simulated(59), refused(59)], "demo", LIVE)
    assert found.deviation["n"] == 29


def test_a_trace_that_was_not_recorded_reports_nothing():
    requests = [TraceRequest(i, 0.0, "", 1000, 10, (), 512, 0.0) for i in range(60)]
    assert compared(requests, simulated(60), "demo", LIVE).deviation is None
