"""Percentiles out of the routers' latency sketches, as a frame carries them. Pure."""

from collections.abc import Mapping

from router.contract import sketch

PERCENTILES = (0.5, 0.9, 0.99)


def percentiles(of: Mapping[int, int]) -> list[float | None]:
    """p50, p90 and p99, three digits each; None for each when nothing was measured."""
    return [significant(sketch.quantile(of, share)) for share in PERCENTILES]


def significant(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")
