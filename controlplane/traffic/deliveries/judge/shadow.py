"""Judges a shadow: the candidate's decisions in situations of the live version, never latencies. Pure."""

import math
from collections.abc import Mapping

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.statistics.comparisons import LEAST_REQUESTS, half_width
from fleet.counted import counted, percent
from router.contract.redis.delivery import ShadowTally

REFUSED = 0.01  # share of the requests served by the live version that the candidate refuses
CROWDED = 2.0  # multiple of the live version's share on an instance
ALPHA = 0.001  # level of each check; a false pause costs a person's time

Interval = tuple[float, float]


def judge(tally: ShadowTally, previewed: Interval | None) -> list[GuardFinding]:
    """Judge a tally. `previewed` is the share of changed decisions predicted by the preview on the pool's own
    traffic."""
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
    text = f"the candidate would refuse {percent(share, '.1f')} of the requests that live serves"
    return _share("shadow.refused", share, tally.n, text, most=REFUSED)


def _share(
    metric: str, share: float, n: int, text: str, *, most: float | None = None, expected: Interval | None = None
) -> GuardFinding:
    """Judge a share of the requests: it fails if it is certainly above `most`, or outside the expected range."""
    low, high = _interval(round(share * n), n)
    fails = (most is not None and low > most) or (expected is not None and (low > expected[1] or high < expected[0]))
    return GuardFinding(
        metric=metric,
        verdict="fail" if fails else "fine",
        text=text,
        estimate=share,
        lower=low,
        upper=high,
        worse=most,
        n=(n, 0),
        effect="pause",
    )


def crowded(tally: ShadowTally) -> GuardFinding:
    """Return the instance whose share grows most. An equal share is never too much, as live may use only a few
    instances."""
    name, share, limit = _fullest(tally.to, tally.live_to, tally.n)
    got = f"{name or 'no instance'} would get {percent(share, '.1f')} of the requests"
    return _share("shadow.crowded", share, tally.n, f"{got}, at most {percent(limit, '.1f')} are allowed", most=limit)


def _fullest(to: Mapping[str, int], live_to: Mapping[str, int], n: int) -> tuple[str, float, float]:
    """Return (instance, its share, its allowed share)."""
    equal = 1 / max(len({*to, *live_to}), 1)
    rows = [(name, count / n, CROWDED * max(live_to.get(name, 0) / n, equal)) for name, count in sorted(to.items())]
    return max(rows, key=lambda row: row[1] - row[2], default=("", 0.0, CROWDED * equal))


def changed(tally: ShadowTally, previewed: Interval | None) -> GuardFinding:
    share = tally.changed / tally.n
    text = f"the candidate decides {percent(share, '.1f')} of the requests otherwise"
    said = "no preview on recorded traffic to compare with"
    if previewed is not None:
        said = f"the preview said {percent(previewed[0], '.1f')} to {percent(previewed[1], '.1f')}"
    return _share("shadow.changed", share, tally.n, f"{text}; {said}", expected=previewed)


def _interval(hits: int, n: int) -> Interval:
    share = hits / n
    smoothed = (hits + 1) / (n + 2)
    half = half_width(math.sqrt(smoothed * (1 - smoothed) / n), n, ALPHA)
    return max(0.0, share - half), min(1.0, share + half)
