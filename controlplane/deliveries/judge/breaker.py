"""The breaker: many failed requests of the candidate at once, which no comparison has to wait for. Pure."""

from collections.abc import Sequence

from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.judge.memory import EndedCounts
from controlplane.deliveries.judge.sums import Evidence

WINDOW_S = 30.0
KEPT_S = 60.0
LEAST_ENDED = 20
LEAST_FAILED = 5  # fewer may be one client that repeats itself
LEAST_SHARE = 0.05
TIMES_CONTROL = 3.0


def window(evidence: Evidence, now: float) -> EndedCounts:
    candidate, control = evidence.total("candidate"), evidence.total("control")
    return EndedCounts(now, (candidate.ended, candidate.failed), (control.ended, control.failed))


def kept(windows: Sequence[EndedCounts], now: float) -> list[EndedCounts]:
    return [each for each in windows if now - each.at <= KEPT_S]


def breaker(windows: Sequence[EndedCounts], now: EndedCounts) -> GuardFinding:
    """`windows`: of earlier looks at this generation, oldest first."""
    old = [each for each in windows if now.at - each.at >= WINDOW_S]
    before = old[-1] if old else EndedCounts(now.at, (0, 0), (0, 0))
    period = f"in {now.at - before.at:.0f} s" if old else "since the split began"
    ended, failed = (now.candidate[at] - before.candidate[at] for at in (0, 1))
    of_control, of_control_failed = (now.control[at] - before.control[at] for at in (0, 1))
    share = failed / ended if ended else 0.0
    control = of_control_failed / of_control if of_control else 0.0
    broken = _is_broken(ended, failed, share, control)
    return GuardFinding(
        metric="breaker",
        verdict="fail" if broken else "inconclusive",
        text=f"{failed} of {ended} requests failed {period}, {of_control_failed} of {of_control} in control",
        candidate=share,
        control=control,
        worse=max(LEAST_SHARE, TIMES_CONTROL * control),
        n=(ended, of_control),
    )


def _is_broken(ended: int, failed: int, share: float, control: float) -> bool:
    many = ended >= LEAST_ENDED and failed >= LEAST_FAILED
    return many and share >= LEAST_SHARE and share >= TIMES_CONTROL * control


def after_promotion(errors: int, ended: int, before: float) -> GuardFinding:
    """While the candidate bakes: it serves everybody. `before`: the share of errors in control, as last seen."""
    share = errors / ended if ended else 0.0
    return GuardFinding(
        metric="breaker",
        verdict="fail" if _is_broken(ended, errors, share, before) else "inconclusive",
        text=f"{errors} of {ended} requests failed in the last minute",
        candidate=share,
        control=before,
        worse=max(LEAST_SHARE, TIMES_CONTROL * before),
        n=(ended, 0),
    )
