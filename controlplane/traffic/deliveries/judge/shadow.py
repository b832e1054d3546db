"""Judges a shadow: the candidate's decisions in live's situations, never latencies. Pure."""

import math
from collections.abc import Mapping

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.statistics.comparisons import LEAST_REQUESTS, half_width
from fleet.counted import counted, percent
from router.contract.redis.delivery import ShadowTally

REFUSED = 0.01  # share of the requests served by live
CROWDED = 2.0  # multiple of live's share on an instance
ALPHA = 0.001  # level of each check, as a false pause costs a person's time

Interval = tuple[float, float]


def judge(tally: ShadowTally, previewed: Interval | None) -> list[GuardFinding]:
    """Judge a tally. `previewed` is the share of changed decisions that the preview on the pool's own traffic
    predicted."""
    found = [raised(tally)]
    if tally.n < LEAST_REQUESTS:
        text = f"{counted(tally.n, 'request')} decided once more: at least {LEAST_REQUESTS} are judged"
        found.append(GuardFinding(metric="shadow", verdict="no_data", text=text, n=(tally.n, 0), needed=True))
    else:
        found += [refused(tally), crowded(tally), changed(tally, previewed)]
    return found


def raised(tally: ShadowTally) -> GuardFinding:
    text = f"the candidate could not decide {tally.raised} of {tally.n} requests" if tally.raised else ""
    return GuardFinding(metric="shadow.raised", verdict="fail" if tally.raised else "fine", text=text, n=(tally.n, 0))


def refused(tally: ShadowTally) -> GuardFinding:
    share = tally.refused_more / tally.n
    low, high = _interval(tally.refused_more, tally.n)
    return GuardFinding(
        metric="shadow.refused",
        verdict="fail" if low > REFUSED else "fine",
        text=f"the candidate would refuse {percent(share, '.1f')} of the requests that live serves",
        estimate=share,
        lower=low,
        upper=high,
        worse=REFUSED,
        n=(tally.n, 0),
        effect="pause",
    )


def crowded(tally: ShadowTally) -> GuardFinding:
    """Return the instance whose share grows most. An equal share is never too much, as live may use only a few
    instances."""
    name, share, limit = _fullest(tally.to, tally.live_to, tally.n)
    low, high = _interval(round(share * tally.n), tally.n)
    return GuardFinding(
        metric="shadow.crowded",
        verdict="fail" if low > limit else "fine",
        text=f"{name or 'no instance'} would get {percent(share, '.1f')} of the requests, "
        f"at most {percent(limit, '.1f')} are allowed",
        estimate=share,
        lower=low,
        upper=high,
        worse=limit,
        n=(tally.n, 0),
        effect="pause",
    )


def _fullest(to: Mapping[str, int], live_to: Mapping[str, int], n: int) -> tuple[str, float, float]:
    """Return (instance, its share, its allowed share)."""
    equal = 1 / max(len({*to, *live_to}), 1)
    rows = [(name, count / n, CROWDED * max(live_to.get(name, 0) / n, equal)) for name, count in sorted(to.items())]
    return max(rows, key=lambda row: row[1] - row[2], default=("", 0.0, CROWDED * equal))


def changed(tally: ShadowTally, previewed: Interval | None) -> GuardFinding:
    share = tally.changed / tally.n
    low, high = _interval(tally.changed, tally.n)
    text = f"the candidate decides {percent(share, '.1f')} of the requests otherwise"
    said = "no preview on recorded traffic to compare with"
    if previewed is not None:
        said = f"the preview said {percent(previewed[0], '.1f')} to {percent(previewed[1], '.1f')}"
    outside = previewed is not None and (low > previewed[1] or high < previewed[0])
    return GuardFinding(
        metric="shadow.changed",
        verdict="fail" if outside else "fine",
        text=f"{text}; {said}",
        estimate=share,
        lower=low,
        upper=high,
        n=(tally.n, 0),
        effect="pause",
    )


def _interval(hits: int, n: int) -> Interval:
    share = hits / n
    smoothed = (hits + 1) / (n + 2)
    half = half_width(math.sqrt(smoothed * (1 - smoothed) / n), n, ALPHA)
    return max(0.0, share - half), min(1.0, share + half)
