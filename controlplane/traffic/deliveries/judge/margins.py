"""The meaning of an interval for a guard's limits: the harm it shows, and the certain margin in words. Pure."""

import math
from enum import StrEnum

from controlplane.traffic.deliveries.plan.types import NEEDED
from fleet.counted import times


class Harm(StrEnum):
    BEYOND = "beyond"  # the whole interval is worse than the limit
    WORSE = "worse"  # the whole interval is worse than control, and not surely beyond the limit
    WITHIN = "within"  # no part of the interval is beyond the limit
    UNKNOWN = "unknown"  # the interval holds both control and the limit: too few requests to tell


def harm(lower: float | None, upper: float | None, worse: float) -> Harm:
    """Classify an interval. Bounds and limit are relative or in points; an absent bound is infinite."""
    low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
    if low > worse:
        return Harm.BEYOND
    if high <= worse:
        return Harm.WITHIN
    return Harm.WORSE if low > 0 else Harm.UNKNOWN


def margin(metric: str, lower: float | None, upper: float | None, worse: float, fine: float | None) -> str:
    """Say the certain margin, as in "surely less than 2.00× slower; 1.25× not excluded"."""
    high = math.inf if upper is None else upper
    limits = sorted({worse, *(() if fine is None else (fine,))})
    sure = next((limit for limit in limits if high <= limit), None)
    possible = [limit for limit in limits if limit < high and limit <= worse]
    parts = [
        _surely(metric, lower, high),
        "" if sure is None or high < 0 else f"surely less than {_limit(metric, sure)} {_comparative(metric)}",
        f"{_limit(metric, max(possible))} not excluded" if possible and _is_open(lower, worse) else "",
    ]
    return "; ".join(filter(None, parts))


def _surely(metric: str, lower: float | None, high: float) -> str:
    if high < 0:
        return f"surely {'faster' if metric in NEEDED else 'fewer'} than control"
    return f"surely {_comparative(metric)} than control" if lower is not None and lower > 0 else ""


def _is_open(lower: float | None, worse: float) -> bool:
    return lower is None or lower <= worse


def _comparative(metric: str) -> str:
    return "slower" if metric in NEEDED else "more"


def _limit(metric: str, limit: float) -> str:
    return times(1 + limit) if metric in NEEDED else f"{100 * limit:.3g} points"
