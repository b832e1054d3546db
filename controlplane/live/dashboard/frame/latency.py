"""The table of a class's latency metrics, for the frame, its history, the pages and /metrics. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from router.contract import sketch


@dataclass(frozen=True, slots=True)
class LatencyMetric:
    key: Literal["ttft", "tpot"]  # name of the sketch in a router's Window, and in frames
    count: Literal["ttft_n", "tpot_n"]  # name of the number of measurements in frames
    label: str
    exported: str  # name on /metrics


LATENCIES = (
    LatencyMetric("ttft", "ttft_n", "TTFT", "weir_class_ttft_seconds"),
    LatencyMetric("tpot", "tpot_n", "TPOT", "weir_class_tpot_seconds"),
)
ALL_POOLS = "*"  # key of class metrics over all pools; pool names have no asterisk
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def percentiles(of: Mapping[int, int]) -> list[float | None]:
    """Return the values of PERCENTILES, three digits each; all None without measurements."""
    return [significant(sketch.quantile(of, share)) for share in PERCENTILES.values()]


def significant(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")
