"""The daily savings of a pool's live version over its predecessor, at the current load. Pure. The savings are
simulated: the version's preview provides the saving per request, and routers count the requests.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from controlplane.common.figures import significant
from controlplane.live.dashboard.frame.types import Classes, Frame
from router.contract.redis.use import SavingLine

DAY_S, HOUR_S = 86_400, 3_600
LEAST_DOLLARS = 1.0  # dollars a day below which a saving is not shown
LEAST_HOURS = 0.1  # GPU-hours a day below which a saving is not shown


def of_pools(frame: Frame, lines: Iterable[SavingLine]) -> dict[str, dict[str, str]]:
    """Return text, title and link by pool; none without requests in the last minute, or for small or uncertain
    savings."""
    found = {}
    for line in lines:
        live = frame["policies"].get(line.pool)
        if live is None or (live["policy"], live["version"]) != (line.policy, line.version):
            continue
        rate = _requests_per_s(frame["classes"].get(line.pool, {}))
        if rate and _is_sure(line) and _is_worth_a_look(line, rate * DAY_S):
            found[line.pool] = _shown(line, rate)
    return found


def _is_sure(line: SavingLine) -> bool:
    """Return whether the interval excludes zero; a line from an older writer has no interval."""
    return line.low is not None and line.high is not None and line.low * line.high > 0


def _is_worth_a_look(line: SavingLine, a_day: float) -> bool:
    if line.dollars is not None:
        return abs(line.dollars) * a_day >= LEAST_DOLLARS
    return abs(line.gpu_s) * a_day / HOUR_S >= LEAST_HOURS


def _requests_per_s(classes: Classes) -> float:
    windows = [window for window in classes.values() if window is not None]
    return float(sum(window["n"] / window["window_s"] for window in windows))


def _shown(line: SavingLine, rate: float) -> dict[str, str]:
    a_day = rate * DAY_S
    if line.dollars is not None:
        value, unit = line.dollars * a_day, "${}"
    else:
        value, unit = line.gpu_s * a_day / HOUR_S, "{} GPU-hours"
    way, amount = "less" if value >= 0 else "more", unit.format(significant(abs(value)))
    low, high = (significant(abs(value) * share) for share in (line.low or 0.0, line.high or 0.0))
    computed = f"{datetime.fromtimestamp(line.at, UTC):%Y-%m-%d %H:%M} UTC with {line.requests:,} requests"
    return {
        "text": f"{amount} a day {way} than v{line.before} ({low} to {high}), n = {line.requests:,}",
        "title": f"Simulated by preview {line.preview} on {computed}, "
        f"the arithmetic of prompts only; scaled to the {rate:.3g} requests/s of the last minute",
        "href": f"/policies/{line.policy}/previews/{line.preview}/",
    }
