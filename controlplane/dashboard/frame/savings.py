"""Savings a day of a pool's live version over the one before it, at the present load. Pure.

Simulated: the preview behind the version gives the saving per request, routers count the requests.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from controlplane.dashboard.frame.types import Classes, Frame
from controlplane.dashboard.templatetags.figures import significant
from router.contract.redis.saving import SavingLine

DAY_S, HOUR_S = 86_400, 3_600


def of_pools(frame: Frame, lines: Iterable[SavingLine]) -> dict[str, dict[str, str]]:
    """Text, title and link by pool. Pools without requests in the last minute have none."""
    found = {}
    for line in lines:
        live = frame["policies"].get(line.pool)
        if live is None or (live["policy"], live["version"]) != (line.policy, line.version):
            continue
        rate = _requests_per_s(frame["classes"].get(line.pool, {}))
        if rate:
            found[line.pool] = _shown(line, rate)
    return found


def _requests_per_s(classes: Classes) -> float:
    windows = [window for window in classes.values() if window is not None]
    return float(sum(window["n"] / window["window_s"] for window in windows))


def _shown(line: SavingLine, rate: float) -> dict[str, str]:
    a_day = rate * DAY_S
    if line.dollars is not None:
        value, unit = line.dollars * a_day, "$ {}"
    else:
        value, unit = line.gpu_s * a_day / HOUR_S, "{} GPU-hours"
    amount = unit.format(significant(abs(value)))
    computed = f"{datetime.fromtimestamp(line.at, UTC):%Y-%m-%d %H:%M} UTC with {line.requests:,} requests"
    return {
        "text": f"{amount} a day {'less' if value >= 0 else 'more'} than v{line.before}, n = {line.requests:,}",
        "title": f"Simulated by preview {line.preview} on {computed}, "
        f"the arithmetic of prompts only; scaled to the {rate:.3g} requests/s of the last minute",
        "href": f"/policies/{line.policy}/previews/{line.preview}/",
    }
